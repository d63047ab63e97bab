-- One job that is to run now, most often what an enqueue brings. What is not so, or not valid, is left to the general way.
-- reads: earliest h id_ms lane levels now paused records0 RUN_BYTES sequence spec waiting
-- sets:  _ kind level n record waiting
local level, kind, _, _, _, _, _, _, _, n = byte(spec, 1, RUN_BYTES)
local record = ARGV[records0 + 1]
if kind == 0 and n == 1 and #spec == RUN_BYTES and level > 0 and level <= levels and #record > 3 then
  call('HSET', key_jobs, h, record)
  call('ZADD', KEYS[ready0 + level], string.format('%d', id_ms), h)
  if waiting then
    -- HERE ring
    ring()
  end
  local payload = h
  -- HERE store
  return answer
end
