-- Head of a write: the queue exists and the caller knows its configuration (no version: any). A repeated request is answered all the same.
local flags, levels = 128, 0
if config then flags, levels = byte(config, 17, 18) end
if not replay then
  if flags >= 128 then return redis.error_reply('QUEUE_NOT_FOUND no such queue') end
  if version ~= '' and sub(config, 1, 8) ~= version then return redis.error_reply('CONFIG_CHANGED reload and resend') end
end
local paused = flags % 2 == 1
