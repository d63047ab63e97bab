-- Counts the pending jobs of a priority: those that may run now, and those that may not yet. A withdrawn job is one of them.
-- reads: now priority
-- sets:  future is_withdrawn pending
local pending, future, is_withdrawn = call('ZCARD', KEYS[ready0 + priority]), 0, call('EXISTS', KEYS[withdrawn0 + priority]) == 1
for _, key in ipairs({ KEYS[scheduled0 + priority], is_withdrawn and KEYS[withdrawn0 + priority] or nil }) do
  local due = call('ZCOUNT', key, '-inf', now)
  pending, future = pending + due, future + call('ZCARD', key) - due
end
