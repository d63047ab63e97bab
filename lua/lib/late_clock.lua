-- TIME, read only where it is needed. Without it ids go on by sequence.
-- sets:  now read_clock
local now = 0
local function read_clock()
  local time = call('TIME')
  now = time[1] * 1000 + floor(time[2] / 1000)
end
