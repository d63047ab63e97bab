-- Notifies one waiter. listeners: how many heard it. A waiter is a session, which listens on its channel; or a session and LIST: there a worker blocks, with
-- a claim behind, and listens on the channel too. since: when it was registered. Workers claim every 10 to 15 s, so one that was silent for longer stands
-- still, and would get a job that it does not start. A list that a dead worker leaves expires by itself. Where the user may not publish, nobody hears it:
-- an error here would leave half of a change.
-- reads: now since waiter
-- sets:  LEFT_MS LIST listeners name QUIET_MS
local LIST, LEFT_MS, QUIET_MS = ':list', '60000', 16000
local name, listeners = sub(key_waiters, 1, -#'waiters' - 1) .. 'wake:' .. waiter, 0
if sub(waiter, -#LIST) ~= LIST then
  if redis.acl_check_cmd('PUBLISH', name, '') then listeners = call('PUBLISH', name, '') end
elseif now - since <= QUIET_MS then
  listeners = call('PUBSUB', 'NUMSUB', sub(name, 1, -#LIST - 1))[2]
  if listeners > 0 then
    call('RPUSH', name, '')
    call('PEXPIRE', name, LEFT_MS)
  end
end
