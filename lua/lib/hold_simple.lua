-- Whether a group has only successes that the caller holds, without extras, and of which nothing is kept. Nobody holds jobs of a priority that the
-- queue does not have (it had it before it was deleted).
-- reads: argv at first groups keep kind priority priorities n runs SUCCEEDED tombstones
-- sets:  at i simple values
local simple = kind == SUCCEEDED and keep == 0 and not tombstones and priority <= priorities
local values, i = simple and call('HMGET', KEYS[running0 + priority], unpack(argv, first, first + n - 1)), 0
at = runs
while i < n do
  local token, run = unp('>c8I2', groups, at)
  local known = 0
  for k = i + 1, simple and i + run or 0 do
    local value = values[k]
    -- most values of one claim are the same
    if value ~= known then
      simple = value and sub(value, 1, 8) == token and byte(value, 11) % 4 == 0
      if not simple then break end
      known = value
    end
  end
  i, at = i + run, at + 10
end
