-- The next id_count ids, without a function. Their halves are high, low + 1 ... low + id_count; h is the last of them.
-- reads: id_count h_high h_low now
-- sets:  h high id_ms id_sequence low
local id_sequence = h_low % 524288
local id_ms = h_high * 8192 + (h_low - id_sequence) / 524288
if now > id_ms then id_ms, id_sequence = now, -1 end
if id_sequence + id_count >= 524288 then id_ms, id_sequence = id_ms + 1, -1 end
local low = id_ms % 8192
local high = (id_ms - low) / 8192
low = low * 524288 + id_sequence
local h = pack('>I4I4', high, low + id_count)
