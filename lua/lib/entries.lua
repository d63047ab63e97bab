-- The tail of a configuration is a list of entries: u8 length, bytes. New settings go behind the last one, so that older and newer callers agree.
-- sets:  entry_of MAX_ENTRIES skip_entries
local MAX_ENTRIES = 100

-- Returns the position behind `most` entries of a tail, and how many there were.
local function skip_entries(packed, at, most)
  local count = 0
  while count < most and at <= #packed do
    at, count = at + 1 + byte(packed, at), count + 1
  end
  return at, count
end

-- The bytes of an entry; '' if the tail does not have it.
local function entry_of(packed, number)
  local at = skip_entries(packed, CONFIG_TAIL, number - 1)
  return at <= #packed and sub(packed, at + 1, at + byte(packed, at)) or ''
end
