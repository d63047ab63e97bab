-- permit: gives the caller the only right to create a queue that this shard does not have.
-- KIND   admit
-- NEEDS  base
-- KEYS   meta permit m
-- ARGV   nonce
-- REPLY  the permit: the nonce ('' = the queue is here)
-- A permit ends at the next one, at a creation, and when forget_queue moves knowledge from here to the registry. So while it stands, this shard has not
-- had the queue, and the registry, read behind the permit, knows all that this shard has forgotten. Each request has a nonce of its own, so a request
-- that is carried out late gives no permit that somebody uses.

local config = call('HGET', key_meta, 'config')
-- HERE check_format
if config and byte(config, CONFIG_FLAGS) < 128 then return { nonce, '' } end
call('HSET', key_permit, 'permit', nonce)
call('PEXPIRE', key_permit, 60000)
return { nonce, nonce }
