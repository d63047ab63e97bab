-- Refuses a read where there is no such queue, or where the caller knows another configuration.
-- reads: version
-- sets:  config flags format h largest priorities meta
local meta = call('HMGET', key_meta, 'config', 'head')
local config = meta[1]
local format, flags, priorities = DATA_FORMAT, 128, 0
if config then format, flags, priorities = byte(config, CONFIG_FORMAT, CONFIG_PRIORITIES) end
if format ~= DATA_FORMAT then
  -- HERE other_format
end
if flags >= 128 then return redis.error_reply('QUEUE_NOT_FOUND no such queue') end
if version ~= '' and sub(config, CONFIG_VERSION, CONFIG_VERSION_END) ~= version then return redis.error_reply('CONFIG_CHANGED reload and resend') end
local h = sub(meta[2], 1, 8)
local largest = #meta[2] < HEAD_BYTES and 4294967295 or unp('>I4', meta[2], HEAD_LARGEST)
