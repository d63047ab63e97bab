-- count: how many jobs there are, by priority and state.
-- KIND   read
-- NEEDS  base check_read clock
-- KEYS   meta ready* scheduled* withdrawn* running* failed* succeeded*
-- ARGV   nonce version
-- REPLY  a priority: u32 pending now, u32 pending in the future, u32 in progress, u32 succeeded, u32 failed

local counts = {}
for priority = 1, priorities do
  -- HERE count_pending
  counts[priority] = pack('>I4I4I4I4I4', pending, future, call('HLEN', KEYS[running0 + priority]), call('ZCARD', KEYS[succeeded0 + priority]),
    call('ZCARD', KEYS[failed0 + priority]))
end
return { nonce, h, concat(counts) }
