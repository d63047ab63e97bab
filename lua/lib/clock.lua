-- Reads TIME once. Due times and leases use it as it is. Ids never go back with it.
-- sets:  now time
local time = call('TIME')
local now = time[1] * 1000 + floor(time[2] / 1000)
