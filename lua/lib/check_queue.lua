-- Refuses a write where there is no such queue, or where the caller knows another configuration. An empty version means any. A repeated request is
-- answered all the same.
-- reads: config replay version
-- sets:  flags format priorities paused
local format, flags, priorities = DATA_FORMAT, 128, 0
if config then format, flags, priorities = byte(config, CONFIG_FORMAT, CONFIG_PRIORITIES) end
if not replay then
  if format ~= DATA_FORMAT then
    -- HERE other_format
  end
  if flags >= 128 then return redis.error_reply('QUEUE_NOT_FOUND no such queue') end
  if version ~= '' and sub(config, CONFIG_VERSION, CONFIG_VERSION_END) ~= version then return redis.error_reply('CONFIG_CHANGED reload and resend') end
end
local paused = flags % 2 == 1
