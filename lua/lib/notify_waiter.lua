-- Notifies one waiter. listeners: how many heard it. A waiter is a channel, or a list whose name ends in a channel: there a worker blocks, with a
-- claim behind, and listens on the channel too. since: when it was registered. Workers claim every 10 to 15 s, so one that was silent for longer stands
-- still, and would get a job that it does not start. A list that a dead worker leaves expires by itself.
-- reads: now since waiter
-- sets:  channel CHANNEL_BYTES listeners LEFT_MS QUIET_MS
local CHANNEL_BYTES, LEFT_MS, QUIET_MS = 24, '60000', 16000
local channel, listeners = sub(waiter, -CHANNEL_BYTES), 0
if channel == waiter then
  listeners = call('PUBLISH', waiter, key_meta)
elseif now - since <= QUIET_MS then
  listeners = call('PUBSUB', 'NUMSUB', channel)[2]
  if listeners > 0 then
    call('RPUSH', waiter, '')
    call('PEXPIRE', waiter, LEFT_MS)
  end
end
