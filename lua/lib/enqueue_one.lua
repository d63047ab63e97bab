-- Enqueues one job that is to run now, as most calls do. Anything else, or what is not valid, is left to the code behind.
-- reads: earliest h id_ms lane largest priorities now paused records0 RUN_BYTES sequence spec waiting
-- sets:  _ kind largest priority n record waiting
local priority, kind, _, _, _, _, _, _, _, n = byte(spec, 1, RUN_BYTES)
local record = ARGV[records0 + 1]
if kind == 0 and n == 1 and #spec == RUN_BYTES and priority > 0 and priority <= priorities and #record > 3 then
  if #record > largest then largest = #record end
  call('HSET', key_jobs, h, record)
  call('ZADD', KEYS[ready0 + priority], string.format('%d', id_ms), h)
  if waiting then
    -- HERE notify
    notify()
  end
  local payload = h
  -- HERE store_answer
  return answer
end
