-- Grants the lease of all jobs of this claim.
-- reads: claim config held now single_flags token total
-- sets:  entry ids_block
local ids_block = concat(held)
-- redis.call writes a number by a slow printf of a double
call('ZADD', key_leases, string.format('%d', now + unp('>I4', config, CONFIG_LEASE_MS)), token)
local entry = pack('>I2', #ids_block) .. ids_block .. claim
if single_flags > 0 then call('HSET', key_lease_jobs, token, entry) else call('HSET', key_lease_jobs, token, entry, token .. 'n', total) end
