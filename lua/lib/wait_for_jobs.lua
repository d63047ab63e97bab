-- Nothing was given: registers the caller as a waiter. due_in: when the next scheduled job is due, unless another waiter holds that timer.
-- reads: earliest NEVER now paused more_work TIMER_MS waiter waiting
-- sets:  due_in waiting
local due_in = earliest < NEVER and math.max(earliest - now, 1) or 0
if waiter ~= '' then
  -- HERE notify
  wait_for_work(waiter)
  if more_work then
    -- there are jobs that it may not take now (quotas), or behind ids without a record: notifies a waiter of them, this one perhaps
    notify()
  elseif due_in > 0 then
    -- one waiter holds the timer of the next scheduled job: the caller, unless another does
    local timer = call('HGET', key_meta, 'timer')
    local due_ms, since = unp('>I6I6', timer or '\0\0\0\0\0\0\0\0\0\0\0\0')
    if timer and due_ms == earliest and now >= since and now - since <= TIMER_MS and sub(timer, 13) ~= waiter then
      due_in = 0
    else
      call('HSET', key_meta, 'timer', pack('>I6I6', earliest, now) .. waiter)
    end
  end
end
