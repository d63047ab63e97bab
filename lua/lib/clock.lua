-- TIME, read once. Due times and leases use it raw; ids never go back with it.
-- sets:  now time
local time = call('TIME')
local now = time[1] * 1000 + floor(time[2] / 1000)
