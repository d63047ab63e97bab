-- Puts jobs of one level in line; tells whether a waiter has a reason to wake (work now, or a new earliest timer).
-- ready: score, member, score, member ... scheduled: score, id ...
-- reads: earliest send
-- sets:  admit earliest
local function admit(level, ready, scheduled)
  if ready[1] then send('ZADD', KEYS[ready0 + level], ready) end
  local wake = ready[1] ~= nil
  if scheduled[1] then
    send('ZADD', KEYS[scheduled0 + level], scheduled)
    for i = 1, #scheduled, 2 do
      local due_ms = tonumber(scheduled[i])
      if due_ms < earliest then earliest, wake = due_ms, true end
    end
  end
  return wake
end
