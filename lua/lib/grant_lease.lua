-- Grants the lease of all jobs of this claim.
-- reads: claim config held now single_flags token total unconfirmed
-- sets:  entry ids_block lease_end lease_ms
local ids_block = concat(held)
-- HERE lease_end
call('ZADD', key_leases, lease_end, token)
local entry = pack('>I2', #ids_block) .. ids_block .. claim
if single_flags > 0 then call('HSET', key_lease_jobs, token, entry) else call('HSET', key_lease_jobs, token, entry, token .. 'n', total) end
