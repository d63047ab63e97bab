-- Nothing was given: the caller is registered as waiting, and told when the next scheduled job is due if nobody else holds that timer.
-- reads: earliest NEVER now paused more_work TIMER_MS waiter waiting
-- sets:  due_in waiting
local due_in = earliest < NEVER and math.max(earliest - now, 1) or 0
if waiter ~= '' then
  -- HERE notify
  wait_for_work(waiter)
  if more_work then
    -- jobs it may not take now (quotas), or behind ids without a record: a waiter is rung for them, itself perhaps
    notify()
  elseif due_in > 0 then
    -- one of those who wait holds the timer of the next scheduled job: the caller, unless another does
    local timer = call('HGET', key_meta, 'timer')
    local due_ms, since = unp('>I6I6', timer or '\0\0\0\0\0\0\0\0\0\0\0\0')
    if timer and due_ms == earliest and now >= since and now - since <= TIMER_MS and sub(timer, 13) ~= waiter then
      due_in = 0
    else
      call('HSET', key_meta, 'timer', pack('>I6I6', earliest, now) .. waiter)
    end
  end
end
