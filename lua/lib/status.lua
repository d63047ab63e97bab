-- extras[id] = attempts left (2), updated ms (6), crashes (2), status (at most 3,000 bytes of UTF-8)
-- sets:  append_status extra prepend_status read_statuses STATUS_BYTES
local STATUS_BYTES = 3000

local function extra(left, updated, crashes, status)
  return pack('>I2I6I2', left, updated, crashes) .. status
end

-- The newest text is whole; what is cut goes at a character's edge.
local function append_status(old, new)
  local text = old .. new
  local first = #text - STATUS_BYTES + 1
  if first <= 1 then return text end
  while first <= #text and byte(text, first) >= 128 and byte(text, first) < 192 do first = first + 1 end
  return sub(text, first)
end

local function prepend_status(old, new)
  local text = new .. old
  local last = STATUS_BYTES
  if #text <= last then return text end
  while last > 0 and byte(text, last + 1) >= 128 and byte(text, last + 1) < 192 do last = last - 1 end
  return sub(text, 1, last)
end

-- statuses: position (2, from 0), length (2), bytes ... -> a table position + 1 -> text
local function read_statuses(packed)
  local texts, at = {}, 1
  while at <= #packed do
    local position, length = unp('>I2I2', packed, at)
    texts[position + 1] = sub(packed, at + 4, at + 3 + length)
    at = at + 4 + length
  end
  return texts
end
