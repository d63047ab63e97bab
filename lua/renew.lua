-- renew: gives leases their full length again. A slow job can get a lease of its own.
-- KIND   write
-- NEEDS  base call_in_chunks lane check_queue clock new_ids lease leave_lease own_lease
-- KEYS   meta leases lease_jobs running*
-- ARGV   lane sequence version jobs own lease
-- REPLY  refused: u16 positions (from 0; the own list counts on after the jobs) whose lease is not held any more
-- jobs, own: u8 priority, id (8), token (8) each. jobs: the whole lease of the claim is renewed; any one of its jobs names it, one that has ended too.
-- own: these jobs are taken out of it.
-- lease: ms that the caller counts on. It renews by thirds of that, so a shorter lease would run out in between. '0': the queue's.

if replay then return stored end
local ITEM = 17
local all, job_count = jobs .. own, #jobs / ITEM
local count = #all / ITEM
if count > 1000 then return redis.error_reply('TOO_MANY leases: expected at most 1000, got ' .. count) end
if count % 1 ~= 0 or job_count % 1 ~= 0 then return redis.error_reply('BAD_REQUEST the jobs are cut off') end
for i = 1, count do
  local priority = byte(all, ITEM * i - 16)
  if priority < 1 then return redis.error_reply('BAD_REQUEST no priority ' .. priority) end
  if priority > #KEYS - running0 and priority <= priorities then return redis.error_reply('CONFIG_CHANGED the queue has more priorities now') end
end

local expires = now + math.max(unp('>I4', config, CONFIG_LEASE_MS), tonumber(lease or '0'))
local refused, renewed = {}, {}

-- A job's value in running, if it is of that claim.
local function running_of(priority, id, token)
  local running = priority <= priorities and call('HGET', KEYS[running0 + priority], id)
  return running and sub(running, 1, 8) == token and running or nil
end

-- The lease of a claim, if it is held.
local function lease_of_claim(priority, id, token)
  if call('HEXISTS', key_lease_jobs, token) == 1 then return token end
  local running = running_of(priority, id, token)
  return running and byte(running, 11) >= 8 and lease_of(running, priority, id)
end

-- The lease of a job that is to have one of its own.
local function lease_of_own(priority, id, token)
  local running = running_of(priority, id, token)
  if not running then return nil end
  if floor(byte(running, 11) / 2) % 2 == 0 then return own_lease(priority, id, running) end
  local lease = lease_of(running)
  return call('HEXISTS', key_lease_jobs, lease) == 1 and lease
end

for i = 1, count do
  local priority, id, token = unp('>Bc8c8', all, ITEM * i - 16)
  local lease = (i > job_count and lease_of_own or lease_of_claim)(priority, id, token)
  if lease then
    renewed[#renewed + 1], renewed[#renewed + 2] = expires, lease
  else
    refused[#refused + 1] = pack('>I2', i - 1)
  end
end
if renewed[1] then call_in_chunks('ZADD', key_leases, renewed) end
settle_leases()
return finish(concat(refused))
