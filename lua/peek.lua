-- peek: how many jobs are due now, by priority.
-- KIND   read
-- NEEDS  base check_read clock
-- KEYS   meta ready* scheduled*
-- ARGV   nonce version
-- REPLY  due (u32 a priority), paused ('0', '1')

local due = {}
for priority = 1, priorities do
  due[priority] = pack('>I4', call('ZCARD', KEYS[ready0 + priority]) + call('ZCOUNT', KEYS[scheduled0 + priority], '-inf', now))
end
return { nonce, h, concat(due), byte(config, CONFIG_FLAGS) % 2 == 1 and '1' or '0' }
