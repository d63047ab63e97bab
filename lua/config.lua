-- config: the configuration of a queue on this shard, also of a deleted one.
-- KIND   read
-- NEEDS  base
-- KEYS   meta m
-- ARGV   nonce
-- REPLY  configuration ('' = never created), monitor's owner and until ('' = none), ids found without a record

local meta = call('HMGET', key_meta, 'head', 'config', 'monitor', 'lost')
local config = meta[2]
-- HERE check_format
return { nonce, sub(meta[1] or '\0\0\0\0\0\0\0\0', 1, 8), config or '', meta[3] or '', meta[4] or '0' }
