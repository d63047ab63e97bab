-- TIME, read once and only by those who need it: without it ids go on by sequence.
-- sets:  now read_clock
local now = 0
local function read_clock()
  local time = call('TIME')
  now = time[1] * 1000 + floor(time[2] / 1000)
end
