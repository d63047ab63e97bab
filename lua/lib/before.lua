-- Whether one id (or token, or version) is smaller than another. `a < b` would compare by the server's locale, and numbers cannot hold 63 bits.
-- sets:  before
local function before(a, b)
  local a_high, a_low = unp('>I4I4', a)
  local b_high, b_low = unp('>I4I4', b)
  return a_high < b_high or (a_high == b_high and a_low < b_low)
end
