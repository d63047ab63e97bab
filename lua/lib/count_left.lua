-- Counts what a priority still has that is due. Where less was taken than was wanted there is nothing to count.
-- below a priority where the limit was reached nothing is taken; most often there is nothing either, and one look is enough
-- reads: any_due due empty_below full holes left priority priorities n taken
-- sets:  empty_below
if n == 0 and not any_due and not empty_below then empty_below = call('EXISTS', unpack(KEYS, ready0 + priority, ready0 + priorities)) == 0 and 1 or 2 end
if n > 0 and taken < n and not full and not holes or empty_below == 1 then
  left[priority] = due
else
  left[priority] = due + call('ZCARD', KEYS[ready0 + priority])
end
