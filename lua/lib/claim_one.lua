-- A claim of one job while nothing is due: most often the first of some priority is a bare one with a record. What is not so is put back, and
-- left to the general way. What is left is not told: whoever may take jobs of all priorities asks for the next one anyhow.
-- reads: claim config earliest h lane priorities now paused sequence token waiting
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
  call('ZADD', key_leases, string.format('%d', now + unp('>I4', config, CONFIG_LEASE_MS)), payload)
  if waiting and call('EXISTS', unpack(KEYS, ready0 + at, ready0 + priorities)) > 0 then
    -- HERE notify
    notify()
  end
  -- HERE store_answer
  return answer .. record
end
