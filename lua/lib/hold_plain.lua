-- Whether a group is of successes that the caller holds, that have no extras, and of which nothing is kept.
-- of a level that the queue has not (it had, before it was deleted) nobody holds anything
-- reads: argv at first groups keep kind level levels n runs SUCCEEDED tombstones
-- sets:  at i plain values
local plain = kind == SUCCEEDED and keep == 0 and not tombstones and level <= levels
local values, i = plain and call('HMGET', KEYS[running0 + level], unpack(argv, first, first + n - 1)), 0
at = runs
while i < n do
  local token, run = unp('>c8I2', groups, at)
  local known = 0
  for k = i + 1, plain and i + run or 0 do
    local value = values[k]
    -- of one claim most values are the same
    if value ~= known then
      plain = value and sub(value, 1, 8) == token and byte(value, 11) % 4 == 0
      if not plain then break end
      known = value
    end
  end
  i, at = i + run, at + 10
end
