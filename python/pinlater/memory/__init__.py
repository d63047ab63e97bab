"""The memory store: Redis's part of PinLater in this process, for tests and trials without a server.

Promises the transitions themselves: the shipped Lua scripts run, on the few Redis commands they use. Risks: nothing is
kept when the process ends. `pinlater.memory.server` has the server, `lua` runs the scripts, `commands` and `values` are
what they run on.
"""
