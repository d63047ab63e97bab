-- The head of a queue, read once, and whether this request was carried out before: then it is answered, not done twice.
-- A lane is a field of m: sequence (4), h (8), reply; they become replay_h and replay.
local NEVER = 1e15
local meta = call('HMGET', key_m, 'c', 'h', 'd', 'w', lane)
local config, stored = meta[1], meta[5]
-- earliest: no job is scheduled before it. waiting: somebody may wait for a ring.
local known_due = meta[3] and tonumber(meta[3]) or NEVER
local earliest, waiting = known_due, meta[4] == '1'
local replay, replay_h
if stored then
  if sub(stored, 1, 4) == sequence then
    replay_h, replay = sub(stored, 5, 12), sub(stored, 13)
  elseif unp('>I4', stored) > unp('>I4', sequence) then
    return redis.error_reply('STALE_REQUEST a later request of this lane was carried out')
  end
end
