-- delete_queue: removes everything of a queue but what it leaves for the registry, so that ids, tokens, versions and epochs never come back.
-- KIND   write
-- NEEDS  base lane check_queue clock new_ids before entries version remnant limits_message
-- KEYS   meta waiters jobs extras leases lease_jobs reservations tombstones quarantined result_expiries results batch_of batches restores
-- KEYS   ready* scheduled* withdrawn* running* failed* succeeded*
-- ARGV   lane sequence version below
-- REPLY  what it leaves for the registry (lib/remnant); nothing if the queue is not of an earlier epoch
-- below: '', or an epoch: removes only what is of an earlier one.
-- The key grantees expires by itself, a minute after the last grant. It notifies the last thousand waiters, as no job will come to them,
-- and the clients that rest because of a limit.
-- forget_queue removes the rest, once the registry has it. Until then this lane stays. Another request that is resent gets QUEUE_NOT_FOUND, which its
-- client reads as unknown.

if replay then return stored end
if below ~= '' and epoch_of(config) >= tonumber(below) then return finish('') end
local drawn, new_h = draw_version()
local waiters = call('ZRANGE', key_waiters, -1000, -1)
local tombstone = string.char(DATA_FORMAT, 128, priorities) .. drawn .. sub(config, CONFIG_GENERATION, CONFIG_GENERATION_END)
  .. pack('>I4', epoch_of(config) + 1) .. sub(config, CONFIG_LEASE_MS, CONFIG_BODY_LIMIT_END)
call('UNLINK', unpack(KEYS))
local answer = sequence .. new_h .. remnant_of(new_h, tombstone)
call('HSET', key_meta, 'config', tombstone, 'head', new_h .. pack('>I6BI4', NEVER, 0, 0), lane, answer)
local since = now
for _, waiter in ipairs(waiters) do
  -- HERE notify_waiter
end
send_limits('')
return answer
