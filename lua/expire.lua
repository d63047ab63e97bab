-- expire: recovers the jobs of expired leases, notifies a waiter of scheduled jobs that nobody saw become due, recovers jobs whose lease is lost, and watches
-- the clock. One monitor at a time is active.
-- KIND   write
-- NEEDS  base call_in_chunks lane check_queue clock decorated new_ids created_ms notify lease original_score status utc suspect recover_jobs
-- KEYS   meta waiters extras leases lease_jobs quarantined ready* running* failed*
-- ARGV   lane sequence version owner hold expected sweep
-- REPLY  u8 active, u8 rests, u8 more, u48 now, u32 leases, u32 retried, u32 failed, u48 next look of others, u16 n, n × (u8 priority, id), next sweep
-- owner: 8 bytes of this monitor. hold: ms for which it is the active one from now. expected: '' on its first look (nothing expires), or
-- u48 earliest, u48 latest TIME that its own clock allows, u48 TIME of its last look, u8 1 if the last look showed that the clock had jumped.
-- sweep: '' or where to look on for jobs whose lease is lost: priority, ':', cursor; '1:0' at first, then that of the last reply.
-- n: of jobs that failed for good and are not to be moved.
-- rests: 0 (leases end), 1 (none ends now), 2 (none ends from now on, as TIME is not what was expected).

if replay then return stored end
if #KEYS - failed0 < priorities then return redis.error_reply('CONFIG_CHANGED the queue has more priorities now') end
local lease_ms = unp('>I4', config, CONFIG_LEASE_MS)
local hold_ms = tonumber(hold)

local rests = 0

local function report(active, more, until_ms)
  return finish(
    pack('>BBBI6I4I4I4I6I2', active, rests, more, now, counts.leases, counts.retried, counts.failed, until_ms, #failed_jobs) .. concat(failed_jobs) .. sweep
  )
end

-- TIME is unexpected if the clock jumped or the server stood still. A clock that jumped would end every lease at once, or keep a dead worker's for as
-- long as it went back; a server that stood still was renewed by nobody. So nothing expires for one lease from then on (live workers renew). After a
-- jump no lease may be longer than one from now. Only the monitor can tell the two apart: it knows how long its call took.
local watch = call('HMGET', key_meta, 'rests', 'jumped', 'monitor')
local rests_at, jumped_at, monitor = tonumber(watch[1] or '0'), tonumber(watch[2] or '0'), watch[3]
local earliest_ms, latest_ms, seen_ms, jumped = 0, now, now, 0
if expected ~= '' then earliest_ms, latest_ms, seen_ms, jumped = unp('>I6I6I6B', expected) end
local jumps = jumped == 1 or jumped_at > now
if jumps then
  jumped_at = now
  call('HSET', key_meta, 'jumped', now)
end
if now < earliest_ms or now > latest_ms or rests_at > now or jumps then
  rests, rests_at = 2, now
  call('HSET', key_meta, 'rests', now)
elseif rests_at > 0 and now < rests_at + lease_ms then
  rests = 1
end

if monitor and sub(monitor, 1, 8) ~= owner then
  local until_ms = unp('>I6', monitor, 9)
  -- an end that is further off than a monitor may ask for was written before the clock went back
  if until_ms > now and until_ms <= now + 2 * hold_ms and rests < 2 then return report(0, 0, until_ms) end
end
call('HSET', key_meta, 'monitor', owner .. pack('>I6', now + hold_ms))

if rests > 0 then
  local long = {}
  if jumped_at > 0 and now < jumped_at + lease_ms then
    long = call('ZRANGE', key_leases, string.format('(%d', now + lease_ms), '+inf', 'BYSCORE', 'LIMIT', 0, 1000, 'WITHSCORES')
    -- an unconfirmed lease stays so (lib/lease_end)
    for i = 1, #long, 2 do long[i], long[i + 1] = now + lease_ms + long[i + 1] % 1, long[i] end
    if long[1] then call_in_chunks('ZADD', key_leases, long) end
  end
  return report(1, #long == 2000 and 1 or 0, now + hold_ms)
end
if expected == '' then return report(1, 0, now + hold_ms) end

-- A job is due and somebody waits: the holder of its timer died or is stuck.
local wake = earliest <= now
-- Since the last look the server may have been away, so that nobody could renew. A live worker's lease outlasts less than two thirds of its length.
-- After a longer time only leases end that had run out by the last look, and the others at the next one.
local before_ms = now - seen_ms > 0.6 * lease_ms and seen_ms or now
local expired = call('ZRANGE', key_leases, '-inf', before_ms, 'BYSCORE', 'LIMIT', 0, 1001, 'WITHSCORES')
for i = 1, #expired, 2 do
  if is_full(expired[i]) then break end
  wake = end_lease(expired[i], '', expired[i + 1]) or wake
end

local more = #expired > 2 * counts.leases and 1 or 0

-- Jobs whose lease is lost (evicted, or removed by hand) would run for ever. Each call looks at one page of one priority, if it has ended few leases. A
-- page may have more elements than were asked for, so what is too much for this call is left for the next one, which looks at that page again.
local PAGE = 100

local function leases_of_page(priority, page)
  local found = {}
  for i = 1, #page, 2 do
    local id, value = page[i], page[i + 1]
    local lease = #value >= 11 and lease_of(value, priority, id)
    if lease then
      found[lease] = found[lease] or {}
      found[lease][#found[lease] + 1] = id
    end
  end
  return found
end

-- Returns whether all jobs of the page are done with.
local function recover_lost(priority, page)
  for lease, ids in pairs(leases_of_page(priority, page)) do
    if call('ZSCORE', key_leases, lease) == false then
      if #lease == SINGLE_LEASE_BYTES or call('HEXISTS', key_lease_jobs, lease) == 1 then
        call('ZADD', key_leases, now + lease_ms, lease) -- who lives renews it
      else
        local room = CALL_JOBS - counts.jobs
        if room < 1 or counts.bytes >= CALL_BYTES then return false end
        wake = recover_jobs(priority, { unpack(ids, 1, math.min(room, #ids)) }, lease, '', '') or wake
        counts.leases, counts.jobs = counts.leases + 1, counts.jobs + #ids
        if room < #ids then return false end
      end
    end
  end
  return true
end

if sweep ~= '' and counts.jobs < CALL_JOBS then
  local priority, from = string.match(sweep, '^(%d+):(%d+)$')
  priority = tonumber(priority)
  if priority > priorities then priority, from = 1, '0' end
  local page = call('HSCAN', KEYS[running0 + priority], from, 'COUNT', PAGE)
  if recover_lost(priority, page[2]) then
    sweep = page[1] ~= '0' and priority .. ':' .. page[1] or (priority % priorities + 1) .. ':0'
  else
    more = 1
  end
end
if counts.leases > 0 and flags % 16 >= FLAG_MAX_RUNNING then
  -- HERE free_places
  wake = wake and not due
end
if wake then notify() end
return report(1, more, now + hold_ms)
