"""The memory store: Redis's part of PinLater in this process, for tests and trials without a server.

`server` accepts connections, `lua` runs the shipped scripts, `commands` and `sorted_sets` are the Redis commands that
they use, `store` and `values` hold the data. Nothing is kept after the process ends.
"""
