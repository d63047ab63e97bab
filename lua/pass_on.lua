-- pass_on: notifies one waiter (a full worker passes its notification on), or lets one take over from a client that stops waiting.
-- KIND   write
-- NEEDS  base lane check_queue clock new_ids notify
-- KEYS   meta waiters
-- ARGV   lane sequence version leaving
-- REPLY  nothing
-- leaving: '' or that client, as a waiter. Another one is notified if this one was (and did not claim), or if it held the timer.

if replay then return stored end
if leaving ~= '' then
  local timer = call('HGET', key_meta, 'timer')
  local waited, held = call('ZREM', key_waiters, leaving) == 1, timer and sub(timer, 13) == leaving
  if held then call('HDEL', key_meta, 'timer') end
  if waited and (not held or earliest == NEVER) then return finish('') end
end
notify()
return finish('')
