-- pause: stops the claims of a queue shard for a time, or lets them go on. A pause that ends later stays.
-- KIND   write
-- NEEDS  base lane check_queue clock new_ids notify limits_message
-- KEYS   meta waiters
-- ARGV   lane sequence version pause_ms by
-- REPLY  u48 ms for which claims rest from now
-- pause_ms: '0' ends the pause. by: who asked for it, at most 300 bytes.

if replay then return stored end
local wanted_ms = tonumber(pause_ms)
if wanted_ms < 0 or wanted_ms >= 17592186044416 then return redis.error_reply('BAD_REQUEST pause: expected 0 to 2^44 - 1 ms, got ' .. pause_ms) end
-- HERE read_pause
if wanted_ms > left_ms then
  call('HSET', key_meta, 'config', with_pause(true), 'pause', pack('>I6I6', now, now + wanted_ms) .. sub(by, 1, 300))
  left_ms = wanted_ms
  send_limits(pause_ms)
elseif wanted_ms == 0 then
  call('HSET', key_meta, 'config', with_pause(false))
  call('HDEL', key_meta, 'pause')
  left_ms = 0
  notify()
end
return finish(pack('>I6', left_ms))
