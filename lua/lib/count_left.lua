-- Counts what a level still has that is due. Where less was taken than was wanted there is nothing to count.
-- below a level where the limit was reached nothing is taken; most often there is nothing either, and one look is enough
-- reads: any_due due empty_below full holes left level levels n taken
-- sets:  empty_below
if n == 0 and not any_due and not empty_below then empty_below = call('EXISTS', unpack(KEYS, ready0 + level, ready0 + levels)) == 0 and 1 or 2 end
if n > 0 and taken < n and not full and not holes or empty_below == 1 then
  left[level] = due
else
  left[level] = due + call('ZCARD', KEYS[ready0 + level])
end
