-- What happens when jobs leave a lease. left_lease: lease -> jobs that left it. lease_jobs[lease .. 'n'] = jobs left, only for a lease of several.
-- reads: lease_of SOLE_BYTES
-- sets:  leaves left_lease settle_leases SOLE
local SOLE = 1000000
local left_lease = {}

local function leaves(running, level, id)
  local lease = lease_of(running, level, id)
  left_lease[lease] = (left_lease[lease] or 0) + (byte(running, 11) >= 2 and SOLE or 1)
end

local function settle_leases()
  for lease, count in pairs(left_lease) do
    local left = count < SOLE and tonumber(call('HGET', key_lease_jobs, lease .. 'n') or '0') or 0
    if left > count then
      call('HINCRBY', key_lease_jobs, lease .. 'n', -count)
    else
      if #lease < SOLE_BYTES then call('HDEL', key_lease_jobs, lease, lease .. 'n') end
      call('ZREM', key_leases, lease)
    end
  end
end
