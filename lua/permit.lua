-- permit: gives the caller the only right to create a queue that this shard does not have.
-- KIND   admit
-- NEEDS  base clock
-- KEYS   meta permit
-- ARGV   nonce
-- REPLY  the permit ('' = the queue is here)
-- While a permit stands, what the registry has of the queue cannot grow: the next permit, a creation, a deletion and forget_queue end it. So a client
-- that reads the registry after it got its permit creates from nothing older. The time makes a permit that is given again by a late repeat another one.

local config = call('HGET', key_meta, 'config')
if config and byte(config, CONFIG_FLAGS) < 128 then return { nonce, '' } end
local permit = nonce .. pack('>I6', now) .. time[2]
call('HSET', key_permit, 'permit', permit)
call('PEXPIRE', key_permit, 60000)
return { nonce, permit }
