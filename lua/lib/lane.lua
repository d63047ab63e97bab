-- Reads the head of a queue once, and whether this request was carried out before; then it is answered and not carried out again. A lane is a field
-- of meta: its last answer as it was sent, `sequence (4), h (8), payload`. replay: the payload of a repeated request.
-- reads: lane sequence
-- sets:  config earliest h_high h_low head largest meta NEVER replay stored waiting
local NEVER = 281474976710655
local meta = call('HMGET', key_meta, 'config', 'head', lane)
local config, stored = meta[1], meta[3]
-- h (two halves). earliest: no job is scheduled before it. waiting: there may be waiters. largest: no record has more bytes. These two are read, and
-- written (lib/store_answer), as one number, which costs less.
local head = meta[2] or '\0\0\0\0\0\0\0\0\255\255\255\255\255\255\0\0\0\0\0'
-- an earlier version of PinLater writes no largest
if #head < HEAD_BYTES then head = head .. '\255\255\255\255' end
local h_high, h_low, earliest, largest = unp('>I4I4I6I5', head)
local waiting = largest >= HEAD_WAITING
if waiting then largest = largest - HEAD_WAITING end
local replay
if stored then
  local last, this = unp('>I4', stored), unp('>I4', sequence)
  if last == this then
    replay = sub(stored, 13)
  elseif last > this then
    return redis.error_reply('STALE_REQUEST a later request of this lane was carried out')
  end
end
