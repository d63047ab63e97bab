-- Head of a read: the queue exists and the caller knows its configuration.
local meta = call('HMGET', key_m, 'c', 'h')
local config = meta[1]
if not config or byte(config, 17) >= 128 then return redis.error_reply('QUEUE_NOT_FOUND no such queue') end
if version ~= '' and sub(config, 1, 8) ~= version then return redis.error_reply('CONFIG_CHANGED reload and resend') end
local levels, h = byte(config, 18), sub(meta[2], 1, 8)
