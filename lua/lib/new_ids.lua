-- Ids: 44-bit ms, 19-bit sequence, always greater than the last one (h). finish() stores h, the lane and what changed of the head, and returns the
-- answer.
-- reads: earliest h_high h_low lane largest now sequence waiting
-- sets:  finish id_ms id_sequence new_ids took_ids
local id_ms, id_sequence = h_high * 8192 + floor(h_low / 524288), h_low % 524288
local took_ids = false

-- Takes n ids in a row (n <= 1,000). Their halves are high, low + 1 ... low + n.
local function new_ids(n)
  if now > id_ms then id_ms, id_sequence = now, -1 end
  if id_sequence + n >= 524288 then id_ms, id_sequence = id_ms + 1, -1 end
  local high, low = floor(id_ms / 8192), (id_ms % 8192) * 524288 + id_sequence
  id_sequence, took_ids = id_sequence + n, true
  return high, low
end

local function finish(payload)
  if not took_ids then new_ids(1) end
  local h = pack('>I4I4', floor(id_ms / 8192), (id_ms % 8192) * 524288 + id_sequence)
  -- HERE store_answer
  return answer
end
