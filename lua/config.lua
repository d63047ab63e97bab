-- config: the configuration of a queue on this shard, also of a deleted one.
-- KIND   read
-- NEEDS  base remnant
-- KEYS   meta m
-- ARGV   nonce
-- REPLY  configuration ('' = meta has none), monitor's owner and until ('' = none), ids found without a record,
--        what the queue leaves for the registry, if it is deleted (else '')

local meta = call('HMGET', key_meta, 'head', 'config', 'monitor', 'lost')
local config = meta[2]
-- HERE check_format
local h = sub(meta[1] or '\0\0\0\0\0\0\0\0', 1, 8)
local remnant = config and byte(config, CONFIG_FLAGS) >= 128 and remnant_of(h, config) or ''
return { nonce, h, config or '', meta[3] or '', meta[4] or '0', remnant }
