-- end_leases: recovers the jobs of a worker process that is known to be dead, before its leases run out.
-- KIND   write
-- NEEDS  base call_in_chunks lane check_queue clock decorated new_ids created_ms notify lease original_score status utc suspect recover_jobs
-- KEYS   meta waiters extras leases lease_jobs quarantined ready* running* failed*
-- ARGV   lane sequence version source how started cursor
-- REPLY  u32 leases, u32 retried, u32 failed, u32 not started, u8 more, u16 n, n × (u8 priority, id) of failed jobs, next cursor
-- source: of the claim descriptors of that process, and of no other. how: how it ended, for the custom status: 'was killed by SIGKILL'.
-- started: '', or ids, 8 bytes each: its other jobs get back their score, as by release.
-- cursor: '0:0' at first, then that of the last reply while there is more: a priority (0: the entries of leases), ':', cursor.

if replay then return stored end
if #KEYS - failed0 < priorities then return redis.error_reply('CONFIG_CHANGED the queue has more priorities now') end

if started ~= '' then
  started_ids = {}
  for at = 1, #started, 8 do started_ids[sub(started, at, at + 7)] = true end
end

-- Pages of 100 elements a call, as long as they are small: the entry of a lease of a thousand jobs has 8 kB.
local PAGES = 10

local priority, from = string.match(cursor, '^(%d+):(%d+)$')
priority = tonumber(priority)
if not priority or priority > priorities then return redis.error_reply('BAD_REQUEST cursor: expected a priority and a cursor, got ' .. cursor) end
local wake, bytes = false, 0

-- The lease that an element stands for, and its claim descriptor; nothing if it stands for none.
local function lease_at(field, value)
  if priority == 0 then
    if #field == 8 then return field, sub(value, 3 + unp('>I2', value)) end
  elseif #value >= 11 and byte(value, 11) >= 8 then
    return lease_of(value, priority, field), sub(value, 12)
  end
end

-- Returns whether it came to the end of the page.
local function end_leases_of(page)
  for i = 1, #page, 2 do
    bytes = bytes + #page[i + 1]
    local lease, claim = lease_at(page[i], page[i + 1])
    if lease and source_in(claim) == source then
      if is_full(lease) then return false end
      wake = end_lease(lease, how, call('ZSCORE', key_leases, lease)) or wake
    end
  end
  return true
end

for _ = 1, PAGES do
  local page = call('HSCAN', priority > 0 and KEYS[running0 + priority] or key_lease_jobs, from, 'COUNT', 100)
  if not end_leases_of(page[2]) then break end
  from = page[1]
  if from == '0' then priority = priority + 1 end
  if priority > priorities or bytes >= CALL_BYTES then break end
end
if counts.leases > 0 and flags % 16 >= FLAG_MAX_RUNNING then
  -- HERE free_places
  wake = wake and not due
end
if wake then notify() end
local more = priority <= priorities and 1 or 0
return finish(
  pack('>I4I4I4I4BI2', counts.leases, counts.retried, counts.failed, counts.unstarted, more, #failed_jobs) .. concat(failed_jobs) .. priority .. ':' .. from
)
