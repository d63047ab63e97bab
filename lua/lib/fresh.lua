-- The next ids (fresh: how many), without a function: their halves are high, low + 1 ... low + fresh; h is the last of them.
local high, low = unp('>I4I4', meta[2])
local id_ms, id_sequence = high * 8192 + floor(low / 524288), low % 524288
if now > id_ms then id_ms, id_sequence = now, -1 end
if id_sequence + fresh >= 524288 then id_ms, id_sequence = id_ms + 1, -1 end
high, low = floor(id_ms / 8192), (id_ms % 8192) * 524288 + id_sequence
local h = pack('>I4I4', high, low + fresh)
