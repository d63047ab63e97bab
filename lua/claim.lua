-- claim: gives due jobs to one worker, under one lease and one token. A worker that gets none is registered as a waiter.
-- KIND   write
-- NEEDS  base lane check_queue clock decorated suspect
-- KEYS   meta waiters jobs leases ready* running* | extras lease_jobs scheduled*
-- ARGV   lane sequence version claim | limit quotas waiter budget unconfirmed
-- REPLY  token (zeros: no jobs), due in (u48 ms from now; 0: none, or another holds the timer), u8 limited, u8 priorities,
--        left (u32 a priority), jobs block; then lists of records. Of one job it may be one string: u8 priority, id (8), token (8), record
-- A call without what stands behind the bars asks for one simple job. The reply is empty if there is none: the caller then asks with everything.
-- claim: claim descriptor. limit: jobs in all, 1 to 1000. quotas: '' or u16 a priority. waiter: '' (do not wait) or whom to notify (lib/notify_waiter).
-- budget: bytes of records; one job is always given.
-- limited: what keeps jobs from being claimed, a number of model/limits.py, CLAIM_LIMITS; due in is then when it ends, if that is known.
-- unconfirmed: left out, or ms: the lease is unconfirmed and no longer than that (lib/lease_end).

-- A worker that holds the timer of the next scheduled job and was silent for so long is dead: safety claims come every 10 to 15 s.
local TIMER_MS = 15000

local NO_DUE = '\0\0\0\0\0\0'

local NO_TOKEN = '\0\0\0\0\0\0\0\0'

-- The steps are parts, put where they are needed (HERE): a function costs 0.2 to 0.5 µs a call to make, and more with each variable of others
-- that it uses. So a function of a rare case is made in that case.
if replay then
  -- HERE claimed_before
end

local id_count = 1
-- HERE next_ids
local token = h
-- flags: a queue that is paused, or that has a limit which its shards count, needs another look
if (not limit or limit == '1' and quotas == '') and earliest > now and (flags == 0 or flags == FLAG_REFUSE_ABOVE) then
  -- HERE claim_one
end
if not limit then
  local payload = ''
  -- HERE store_answer
  return answer
end

local want, most = tonumber(limit), tonumber(budget)
if want > 1000 then return redis.error_reply('TOO_MANY jobs: expected a limit of at most 1000, got ' .. want) end
if want < 1 then return redis.error_reply('BAD_REQUEST limit: expected 1 to 1000, got ' .. want) end
if quotas ~= '' and #quotas ~= 2 * priorities then return redis.error_reply('BAD_REQUEST quotas: expected one a priority') end

-- places: how many more jobs may run; nil: any
local limited, rest_ms, places = paused and 1 or 0, 0, nil
if flags >= CLAIMS_FLAGS and flags ~= FLAG_REFUSE_ABOVE and not paused then
  -- HERE claim_limits
end
if limited > 0 then
  local payload = NO_TOKEN .. pack('>I6', rest_ms) .. string.char(limited, priorities) .. string.rep('\0\0\0\0', priorities)
  if waiter ~= '' then
    -- HERE notify
    wait_for_work(waiter)
  end
  -- HERE store_answer
  return { answer }
end

local any_due = earliest <= now
if any_due then earliest = NEVER end
-- full: the byte budget is used up. holes: there were ids without a record
local total, full, holes = 0, false, false
local blocks, held, lists, left = {}, {}, {}, {}
-- Flags of a job whose lease covers that job alone (lib/lease): such a lease needs no count of its jobs.
local single_flags = want == 1 and 4 or 0
local simple_flags = string.char(single_flags)

local move_due
if any_due then
  -- HERE call_in_chunks move_due
end

-- HERE fetch_records

local empty_below
for priority = 1, priorities do
  local ready, n, due = KEYS[ready0 + priority], want - total, 0
  if quotas ~= '' then n = math.min(n, (unp('>I2', quotas, 2 * priority - 1))) end
  if full then n = 0 end
  if any_due then due = move_due(priority, n) end
  -- HERE look_ready
  if taken > 0 then
    -- HERE start_running
  end
  total = total + taken
  -- HERE count_left
end

local more_work = false
for priority = 1, priorities do
  more_work = more_work or left[priority] > 0
  left[priority] = pack('>I4', left[priority])
end
local all_left = string.char(0, priorities) .. concat(left)
if total == 0 then
  -- HERE wait_for_jobs
  local payload = NO_TOKEN .. pack('>I6', due_in) .. all_left
  -- HERE store_answer
  return { answer }
end
-- HERE grant_lease
if more_work and waiting and total ~= places then
  -- HERE notify
  notify()
end
local payload = token
-- HERE store_answer
return { answer .. NO_DUE .. all_left .. concat(blocks), unpack(lists) }
