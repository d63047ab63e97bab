-- Takes jobs out of their leases. left_leases: lease -> how many jobs left it. lease_jobs[lease .. 'n']: jobs left, only of a lease of several.
-- reads: lease_of SINGLE_LEASE_BYTES
-- sets:  leave_lease left_leases settle_leases ALL_JOBS
local ALL_JOBS = 1000000
local left_leases = {}

local function leave_lease(running, priority, id)
  local lease = lease_of(running, priority, id)
  left_leases[lease] = (left_leases[lease] or 0) + (byte(running, 11) >= 2 and ALL_JOBS or 1)
end

local function settle_leases()
  for lease, count in pairs(left_leases) do
    local left = count < ALL_JOBS and tonumber(call('HGET', key_lease_jobs, lease .. 'n') or '0') or 0
    if left > count then
      call('HINCRBY', key_lease_jobs, lease .. 'n', -count)
    else
      if #lease < SINGLE_LEASE_BYTES then call('HDEL', key_lease_jobs, lease, lease .. 'n') end
      call('ZREM', key_leases, lease)
    end
  end
end
