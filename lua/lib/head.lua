-- Head of a write: the queue exists, the caller knows its configuration, and the request was not carried out before. One read of m.
-- A lane is a field of m: sequence (4), h (8), reply. A request that was carried out is answered from it (replay, replay_h), not done twice.
local NEVER = 1e15
local meta = call('HMGET', key_m, 'c', 'h', 'd', 'w', lane)
local config, stored = meta[1], meta[5]
if not config or byte(config, 17) >= 128 then return redis.error_reply('QUEUE_NOT_FOUND no such queue') end
if version ~= '' and sub(config, 1, 8) ~= version then return redis.error_reply('CONFIG_CHANGED reload and resend') end
local flags, levels = byte(config, 17, 18)
local paused = flags % 2 == 1
-- earliest: no job is scheduled before it. waiting: somebody may wait for a ring.
local earliest, waiting = meta[3] and tonumber(meta[3]) or NEVER, meta[4] == '1'
local replay, replay_h
if stored then
  if sub(stored, 1, 4) == sequence then
    replay_h, replay = sub(stored, 5, 12), sub(stored, 13)
  elseif unp('>I4', stored) > unp('>I4', sequence) then
    return redis.error_reply('STALE_REQUEST a later request of this lane was carried out')
  end
end
