-- A job left running, so a place of max_running may be free: notifies the waiter that has waited longest, if jobs are due.
-- reads: earliest notify now priorities
-- sets:  due
local due = earliest <= now
for priority = 1, priorities do due = due or call('ZCARD', KEYS[ready0 + priority]) > 0 end
if due then notify(true) end
