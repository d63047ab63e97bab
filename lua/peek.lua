-- peek: how many jobs are due now, a level.
-- KIND   read
-- NEEDS  base read clock
-- KEYS   meta ready* scheduled*
-- ARGV   nonce version
-- REPLY  due (u32 a level), paused ('0', '1')

local due = {}
for level = 1, levels do
  due[level] = pack('>I4', call('ZCARD', KEYS[ready0 + level]) + call('ZCOUNT', KEYS[scheduled0 + level], '-inf', now))
end
return { nonce, h, concat(due), byte(config, CONFIG_FLAGS) % 2 == 1 and '1' or '0' }
