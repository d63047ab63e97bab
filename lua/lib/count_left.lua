-- Counts the due jobs that a priority still has. If the claim took fewer jobs than it wanted, none is left. Once the limit is reached, the claim takes
-- nothing from lower priorities. Most often they are empty, so one EXISTS checks all their keys.
-- reads: any_due due empty_below full holes left priority priorities n taken
-- sets:  empty_below
if n == 0 and not any_due and not empty_below then empty_below = call('EXISTS', unpack(KEYS, ready0 + priority, ready0 + priorities)) == 0 and 1 or 2 end
if n > 0 and taken < n and not full and not holes or empty_below == 1 then
  left[priority] = due
else
  left[priority] = due + call('ZCARD', KEYS[ready0 + priority])
end
