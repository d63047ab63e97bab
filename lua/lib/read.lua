-- Head of a read: the queue exists and the caller knows its configuration.
-- reads: version
-- sets:  config h levels meta
local meta = call('HMGET', key_meta, 'config', 'head')
local config = meta[1]
if not config or byte(config, CONFIG_FLAGS) >= 128 then return redis.error_reply('QUEUE_NOT_FOUND no such queue') end
if version ~= '' and sub(config, CONFIG_VERSION, CONFIG_VERSION_END) ~= version then return redis.error_reply('CONFIG_CHANGED reload and resend') end
local levels, h = byte(config, CONFIG_LEVELS), sub(meta[2], 1, 8)
