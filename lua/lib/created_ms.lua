-- The ms of an id, a token or an h.
-- sets:  created_ms
local function created_ms(id)
  local high, low = unp('>I4I4', id)
  return high * 8192 + floor(low / 524288)
end
