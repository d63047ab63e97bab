-- Stores new jobs and makes them ready or scheduled. Those with a status have extras, so they are decorated.
-- reads: earliest fields first_due now DECORATED paused ready scheduled statuses waiting
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
  for _, entries in pairs(ready) do
    for i = 2, #entries, 2 do
      if has_extra[entries[i]] then entries[i] = entries[i] .. DECORATED end
    end
  end
end

call('HSET', key_jobs, unpack(fields))
if extras then call('HSET', key_extras, unpack(extras)) end
-- a waiter has a reason to wake: work now, or a new earliest timer
local wake = false
for priority, entries in pairs(ready) do
  call('ZADD', KEYS[ready0 + priority], unpack(entries))
  wake = true
end
if scheduled then
  for priority, entries in pairs(scheduled) do call('ZADD', KEYS[scheduled0 + priority], unpack(entries)) end
end
if first_due < earliest then earliest, wake = first_due, true end
if wake and waiting then
  -- HERE notify
  notify()
end
local payload = fields[1]
