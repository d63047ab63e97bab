-- A new lease of one job, with the claim descriptor of the lease that it leaves. Writes the job's value in running, and returns the lease.
-- reads: claim_of leave_lease new_ids
-- sets:  own_lease
local function own_lease(priority, id, running)
  local high, low = new_ids(1)
  local own_token, claim, job_flags = pack('>I4I4', high, low + 1), claim_of(running), byte(running, 11)
  leave_lease(running, priority, id)
  call('HSET', key_lease_jobs, own_token, pack('>I2BI2', 11, priority, 1) .. id .. claim)
  call('HSET', KEYS[running0 + priority], id, sub(running, 1, 10) .. string.char(job_flags % 2 + 6) .. own_token .. (job_flags >= 8 and '' or sub(running, 12)))
  return own_token
end
