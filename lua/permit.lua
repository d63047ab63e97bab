-- permit: gives the caller the only right to create a queue that this shard does not have.
-- KIND   admit
-- NEEDS  base clock
-- KEYS   meta permit m
-- ARGV   nonce
-- REPLY  the permit ('' = the queue is here)
-- A permit ends at the next one, at a creation, and when forget_queue moves knowledge from here to the registry. So while it stands, this shard has not
-- had the queue, and the registry, read behind the permit, knows all that this shard has forgotten. With the time in it, a late repeat of this call
-- gives another permit.

local config = call('HGET', key_meta, 'config')
-- HERE check_format
if config and byte(config, CONFIG_FLAGS) < 128 then return { nonce, '' } end
local permit = nonce .. pack('>I6', now) .. time[2]
call('HSET', key_permit, 'permit', permit)
call('PEXPIRE', key_permit, 60000)
return { nonce, permit }
