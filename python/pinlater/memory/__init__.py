"""The memory store: it replaces Redis, in this process, for tests and trials.

`server` accepts connections. `lua` runs the scripts. `commands` and `sorted_sets` are the Redis commands that scripts
and clients use. `store` and `values` hold the data. All data are lost when the process ends.
"""
