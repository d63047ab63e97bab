-- Puts the jobs of lines in line. Those that come with a status have extras, and are odd.
-- reads: earliest fields first_due now ODD paused ready scheduled statuses waiting
-- sets:  earliest extras payload waiting wake
local extras
if statuses ~= '' then
  -- HERE status
  local has_extra = {}
  extras = {}
  for position, text in pairs(read_statuses(statuses)) do
    local id = fields[2 * position - 1]
    if not id then return redis.error_reply('BAD_REQUEST no job ' .. position - 1 .. ' for a status') end
    has_extra[id] = true
    extras[#extras + 1] = id
    extras[#extras + 1] = extra(unp('>I2', fields[2 * position], 2), now, 0, append_status('', text))
  end
  for _, line in pairs(ready) do
    for i = 2, #line, 2 do
      if has_extra[line[i]] then line[i] = line[i] .. ODD end
    end
  end
end

call('HSET', key_jobs, unpack(fields))
if extras then call('HSET', key_extras, unpack(extras)) end
-- a waiter has a reason to wake: work now, or a new earliest timer
local wake = false
for level, line in pairs(ready) do
  call('ZADD', KEYS[ready0 + level], unpack(line))
  wake = true
end
if scheduled then
  for level, line in pairs(scheduled) do call('ZADD', KEYS[scheduled0 + level], unpack(line)) end
end
if first_due < earliest then earliest, wake = first_due, true end
if wake and waiting then
  -- HERE ring
  ring()
end
local payload = fields[1]
