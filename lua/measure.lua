-- measure: what metrics show of a queue shard, for one reader at a time.
-- KIND   write
-- NEEDS  base check_read clock
-- KEYS   meta ready* scheduled* withdrawn* running* failed*
-- ARGV   nonce version reader hold
-- REPLY  '' = another process reads; else u32 pending now, u32 pending in the future, u32 in progress, u32 failed, u48 ms that the oldest due job waits
-- reader: 8 bytes of the process. hold: ms for which it is the only reader from now.

local hold_ms = tonumber(hold)
local current = call('HGET', key_meta, 'reader')
if current and sub(current, 1, 8) ~= reader then
  local until_ms = unp('>I6', current, 9)
  -- an end that is further off than a reader may ask for was written before the clock went back
  if until_ms > now and until_ms <= now + 2 * hold_ms then return { nonce, h, '' } end
end
call('HSET', key_meta, 'reader', reader .. pack('>I6', now + hold_ms))

local all_pending, all_future, running, failed, oldest_ms = 0, 0, 0, 0, now
for priority = 1, priorities do
  -- HERE count_pending
  all_pending, all_future = all_pending + pending, all_future + future
  running = running + call('HLEN', KEYS[running0 + priority])
  failed = failed + call('ZCARD', KEYS[failed0 + priority])
  for _, key in ipairs({ KEYS[ready0 + priority], KEYS[scheduled0 + priority], is_withdrawn and KEYS[withdrawn0 + priority] or nil }) do
    local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')
    oldest_ms = math.min(oldest_ms, floor(tonumber(first[2] or now)))
  end
end
return { nonce, h, pack('>I4I4I4I4I6', all_pending, all_future, running, failed, now - oldest_ms) }
