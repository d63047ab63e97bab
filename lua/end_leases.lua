-- end_leases: gives back what a worker process held that is known to be dead, before its leases run out.
-- KIND   write
-- NEEDS  base send lane head clock ready mint created ring admit lease old_place status utc give_back
-- KEYS   meta waiters extras leases lease_jobs quarantined ready* scheduled* running* failed*
-- ARGV   lane sequence version source how begun cursor
-- REPLY  u32 leases, u32 retried, u32 failed, u32 not begun, u8 more, next cursor
-- source: of the claim descriptors of that process, and of no other. how: its end, for the custom status: 'was killed by SIGKILL'.
-- begun: '', or ids, 8 bytes each: jobs that it held and that are not among them go back to their old place, as by release.
-- cursor: '0:0' at first, then, while there is more, what the last reply told: where to look on, a level (0: the entries of leases), ':', cursor.

if replay then return stored end
if #KEYS - failed0 < levels then return redis.error_reply('CONFIG_CHANGED the queue has more levels now') end

if begun ~= '' then
  begun_ids = {}
  for at = 1, #begun, 8 do begun_ids[sub(begun, at, at + 7)] = true end
end

-- Pages of 100 elements a call.
local PAGES = 10

local level, from = string.match(cursor, '^(%d+):(%d+)$')
level = tonumber(level)
if not level or level > levels then return redis.error_reply('BAD_REQUEST cursor: expected a level and a cursor, got ' .. cursor) end
local wake = false

-- The lease that an element stands for, and its claim descriptor; nothing if for none.
local function lease_at(field, value)
  if level == 0 then
    if #field == 8 then return field, sub(value, 3 + unp('>I2', value)) end
  elseif #value >= 11 and byte(value, 11) >= 8 then
    return lease_of(value, level, field), sub(value, 12)
  end
end

-- Returns whether it came to the end of the page.
local function end_leases_of(page)
  for i = 1, #page, 2 do
    local lease, claim = lease_at(page[i], page[i + 1])
    if lease and source_in(claim) == source then
      if counts.jobs >= 1000 then return false end
      wake = end_lease(lease, how) or wake
    end
  end
  return true
end

for _ = 1, PAGES do
  local page = call('HSCAN', level > 0 and KEYS[running0 + level] or key_lease_jobs, from, 'COUNT', 100)
  if not end_leases_of(page[2]) then break end
  from = page[1]
  if from == '0' then level = level + 1 end
  if level > levels then break end
end
if wake then ring() end
local more = level <= levels and 1 or 0
return finish(pack('>I4I4I4I4B', counts.leases, counts.retried, counts.failed, counts.unbegun, more) .. level .. ':' .. from)
