-- Claims one job while nothing is due. Most often the first job of some priority is a simple one with a record. Any other job returns to its place, and
-- the code behind claims it. The reply does not count what is left: a caller that takes jobs of all priorities asks for the next one anyway.
-- reads: claim config earliest h lane largest now paused priorities sequence token unconfirmed waiting
-- sets:  at id popped record waiting
local at, id, popped = 0, nil, nil
repeat
  at = at + 1
  popped = call('ZPOPMIN', KEYS[ready0 + at])
  id = popped[1]
until id or at == priorities
local record = id and #id == 8 and call('HGET', key_jobs, id)
if id and not record then call('ZADD', KEYS[ready0 + at], popped[2], id) end
if record then
  call('HSET', KEYS[running0 + at], id, token .. sub(record, 2, 3) .. '\12' .. claim)
  local payload = string.char(at) .. id .. token
  -- HERE lease_end
  call('ZADD', key_leases, lease_end, payload)
  if waiting and call('EXISTS', unpack(KEYS, ready0 + at, ready0 + priorities)) > 0 then
    -- HERE notify
    notify()
  end
  -- HERE store_answer
  return answer .. record
end
