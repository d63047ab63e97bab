-- count: how many jobs there are, a level and state.
-- KIND   read
-- NEEDS  base read clock
-- KEYS   meta ready* scheduled* running* failed* succeeded*
-- ARGV   nonce version
-- REPLY  a level: u32 pending now, u32 pending in the future, u32 in progress, u32 succeeded, u32 failed

local counts = {}
for level = 1, levels do
  local due = call('ZCOUNT', KEYS[scheduled0 + level], '-inf', now)
  counts[level] = pack('>I4I4I4I4I4', call('ZCARD', KEYS[ready0 + level]) + due, call('ZCARD', KEYS[scheduled0 + level]) - due,
    call('HLEN', KEYS[running0 + level]), call('ZCARD', KEYS[succeeded0 + level]), call('ZCARD', KEYS[failed0 + level]))
end
return { nonce, h, concat(counts) }
