-- Makes jobs of one priority ready or scheduled. Returns whether a waiter has a reason to wake: work now, or a new earliest timer.
-- ready: score, member, score, member ... scheduled: score, id ...
-- reads: earliest call_in_chunks
-- sets:  admit earliest
local function admit(priority, ready, scheduled)
  if ready[1] then call_in_chunks('ZADD', KEYS[ready0 + priority], ready) end
  local wake = ready[1] ~= nil
  if scheduled[1] then
    call_in_chunks('ZADD', KEYS[scheduled0 + priority], scheduled)
    for i = 1, #scheduled, 2 do
      local due_ms = tonumber(scheduled[i])
      if due_ms < earliest then earliest, wake = due_ms, true end
    end
  end
  return wake
end
