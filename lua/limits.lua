-- limits: what a queue shard knows of the queue's limits.
-- KIND   read
-- NEEDS  base check_read clock entries is_home account
-- KEYS   meta grantees running*
-- ARGV   nonce version
-- REPLY  u8 1 if it is the home shard, u48 tokens, u32 tokens of grants that may still be used, u32 processes that asked lately, u32 running,
--        u48 begin and u48 end of a pause (0: none), u48 now, who asked for it

local running, home = 0, is_home(config) and 1 or 0
for priority = 1, priorities do running = running + call('HLEN', KEYS[running0 + priority]) end
local tokens = home == 1 and refill(config) and floor(units / per_ms) or 0
-- HERE pause_times
if end_ms <= now then begin_ms, end_ms = 0, 0 end
local head = pack('>BI6I4I4I4', home, tokens, granted + granted_before, call('ZCARD', key_grantees), running)
return { nonce, h, head .. pack('>I6I6I6', begin_ms, end_ms, now) .. sub(pause, 13) }
