-- Whether one id (or token, or version) is smaller. Not a < b: Lua compares strings by the server's locale; nor as numbers: 63 bits do not fit.
-- sets:  before
local function before(a, b)
  local a_high, a_low = unp('>I4I4', a)
  local b_high, b_low = unp('>I4I4', b)
  return a_high < b_high or (a_high == b_high and a_low < b_low)
end
