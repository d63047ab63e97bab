-- count: how many jobs there are, a level and state.
-- KIND   read
-- NEEDS  base read clock
-- KEYS   m p* d* r* f* s*
-- ARGV   nonce version
-- REPLY  a level: u32 pending now, u32 pending in the future, u32 in progress, u32 succeeded, u32 failed

local counts = {}
for level = 1, levels do
  local due = call('ZCOUNT', KEYS[d0 + level], '-inf', now)
  counts[level] = pack('>I4I4I4I4I4', call('ZCARD', KEYS[p0 + level]) + due, call('ZCARD', KEYS[d0 + level]) - due,
    call('HLEN', KEYS[r0 + level]), call('ZCARD', KEYS[s0 + level]), call('ZCARD', KEYS[f0 + level]))
end
return { nonce, h, concat(counts) }
