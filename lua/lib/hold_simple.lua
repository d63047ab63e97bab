-- Whether a group is of successes that the caller holds, that have no extras, and of which nothing is kept.
-- of a priority that the queue has not (it had, before it was deleted) nobody holds anything
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
    -- of one claim most values are the same
    if value ~= known then
      simple = value and sub(value, 1, 8) == token and byte(value, 11) % 4 == 0
      if not simple then break end
      known = value
    end
  end
  i, at = i + run, at + 10
end
