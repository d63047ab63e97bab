-- running[id] = token (8), attempts left (2), flags of the job (1), [own lease (8)], [original run-after, if it is not the id's own ms].
-- Flags (job_flags): 1 = the job has extras. 2 = its own lease follows. 4 = its lease covers this job alone. 8 = that lease has no entry in lease_jobs:
-- the name of the lease is priority, id and token, and only the claim descriptor follows.
-- sets:  claim_of claims lease_of SINGLE_LEASE_BYTES source_in
local SINGLE_LEASE_BYTES = 17

local function lease_of(running, priority, id)
  local job_flags = byte(running, 11)
  if job_flags >= 8 then return string.char(priority) .. id .. sub(running, 1, 8) end
  if floor(job_flags / 2) % 2 == 1 then return sub(running, 12, 19) end
  return sub(running, 1, 8)
end

-- The claim descriptor of a running job, or ''. The entry of a lease of a thousand jobs has 8 kB, so it is read once for all of them.
local claims = {}
local function claim_of(running)
  if byte(running, 11) >= 8 then return sub(running, 12) end
  local lease = lease_of(running)
  if not claims[lease] then
    local entry = call('HGET', key_lease_jobs, lease)
    claims[lease] = entry and sub(entry, 3 + unp('>I2', entry)) or ''
  end
  return claims[lease]
end

-- host:port:start:<source>:counter; the source may hold colons itself
local function source_in(claim)
  return string.match(claim, '^[^:]*:[^:]*:[^:]*:(.*):[^:]*$')
end
