-- Notifies one waiter, or the next one if nobody listens any more: up to a thousand may have died at once. The latest one comes first, as it most
-- likely lives; with `longest`, the one that has waited longest.
-- reads: now paused waiting
-- sets:  notify wait_for_work waiting
local function notify(longest)
  if paused or not waiting then return end
  for _ = 1, 1000 do
    local last = longest and call('ZPOPMIN', key_waiters) or call('ZPOPMAX', key_waiters)
    local waiter, since = last[1], tonumber(last[2])
    waiting = waiter ~= nil
    if not waiter then return end
    -- HERE notify_waiter
    if listeners > 0 then return end
  end
end

local function wait_for_work(waiter)
  call('ZADD', key_waiters, now, waiter)
  waiting = true
end
