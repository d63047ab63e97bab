-- When the lease of a claim ends, as a score of leases. A half marks a lease as unconfirmed: its worker may not know of it. Renewal writes a
-- whole number, so it confirms the lease.
-- reads: config now unconfirmed
-- sets:  lease_end lease_ms
local lease_ms, lease_end = unp('>I4', config, CONFIG_LEASE_MS), '%d'
if unconfirmed then lease_ms, lease_end = math.min(lease_ms, unconfirmed), '%d.5' end
-- redis.call writes a number by a slow printf of a double
lease_end = string.format(lease_end, now + lease_ms)
