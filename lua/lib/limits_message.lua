-- Sends a message to the clients of this queue shard, on its channel `limits`: '' if the limits changed, so that those that rest look again; the ms of a pause
-- that began, so that workers give back what they claimed and have not started. A client that may not publish sends nothing.
-- sets:  send_limits
local function send_limits(message)
  local channel = sub(key_meta, 1, -#'meta' - 1) .. 'limits'
  if redis.acl_check_cmd('PUBLISH', channel, message) then call('PUBLISH', channel, message) end
end
