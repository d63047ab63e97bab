-- collect: removes finished jobs past their time or over their cap, results past theirs, and lanes, reservations and waiters that nobody uses.
-- KIND   write
-- NEEDS  base call_in_chunks lane check_queue clock new_ids results
-- KEYS   meta waiters jobs extras reservations result_expiries results failed* succeeded*
-- ARGV   lane sequence version cursor
-- REPLY  u32 succeeded, u32 failed, u32 lanes, u32 reservations, u32 waiters, u8 more, next cursor
-- cursor: where to go on among lanes and reservations; '0' at first and when all were seen; the last bytes of the reply.

if replay then return stored end
if succeeded0 - failed0 < priorities then return redis.error_reply('CONFIG_CHANGED the queue has more priorities now') end
local HOUR_MS = 3600000
-- A waiter registers again every 10 to 15 s, so one that did not for a minute is dead.
local WAITER_MS = 60000

-- After a jump of the clock ages are wrong. So nothing is removed for one lease from then on, and a lane, a reservation or a waiter that is older than
-- the jump counts as used then.
local jumped_at = tonumber(call('HGET', key_meta, 'jumped') or '0')
if jumped_at > 0 and now < jumped_at + unp('>I4', config, CONFIG_LEASE_MS) then return finish(pack('>I4I4I4I4I4B', 0, 0, 0, 0, 0, 0) .. '0') end

local keep, succeeded_s, failed_s = unp('>I4I4I4', config, CONFIG_KEEP)
local budget, more = 1000, 0

local function remove(key, ids)
  if not ids[1] then return 0 end
  call_in_chunks('ZREM', key, ids)
  call_in_chunks('HDEL', key_jobs, ids)
  call_in_chunks('HDEL', key_extras, ids)
  budget = budget - #ids
  return #ids
end

local function remove_old(key, ttl_s)
  if budget == 0 then
    more = 1
    return 0
  end
  return remove(key, call('ZRANGE', key, '-inf', now - ttl_s * 1000, 'BYSCORE', 'LIMIT', 0, budget))
end

local succeeded, failed = 0, 0
for priority = 1, priorities do
  failed = failed + remove_old(KEYS[failed0 + priority], failed_s)
  succeeded = succeeded + remove_old(KEYS[succeeded0 + priority], succeeded_s)
  local over = math.min(call('ZCARD', KEYS[succeeded0 + priority]) - keep, budget)
  if over > 0 then succeeded = succeeded + remove(KEYS[succeeded0 + priority], call('ZRANGE', KEYS[succeeded0 + priority], 0, over - 1)) end
end
if drop_results(1000) == 1000 or budget == 0 then more = 1 end

-- The time of a lane is in the h of its last reply; the time of a reservation is its second number.
local function lane_ms(field, value)
  if #field ~= 10 or field == lane then return now end
  local high, low = unp('>I4I4', value, 5)
  return high * 8192 + floor(low / 524288)
end

local function reservation_ms(_, value) return (unp('>I6', value, 3)) end

-- Removes what is over an hour old from one page of a hash. While a tenth of a page is old, the caller goes on at once, to the end of the hash.
-- So about a tenth of what is left is old, however fast it is made, and no more than ten fields are looked at for each that is removed.
local function remove_silent(key, from, time_of)
  local page = call('HSCAN', key, from, 'COUNT', 500)
  local old = {}
  for i = 1, #page[2], 2 do
    if math.max(jumped_at, time_of(page[2][i], page[2][i + 1])) < now - HOUR_MS and #old < 1000 then old[#old + 1] = page[2][i] end
  end
  if old[1] then call_in_chunks('HDEL', key, old) end
  if page[1] ~= '0' and #old >= #page[2] / 20 then more = 1 end
  return #old, page[1]
end

local lane_cursor, reservation_cursor = string.match(cursor, '^(%d+):(%d+)$')
local lanes, next_lane = remove_silent(key_meta, lane_cursor or '0', lane_ms)
local reservations, next_reservation = remove_silent(key_reservations, reservation_cursor or '0', reservation_ms)
local waiters = jumped_at < now - WAITER_MS and math.min(call('ZCOUNT', key_waiters, '-inf', now - WAITER_MS), 1000) or 0
if waiters > 0 then call('ZREMRANGEBYRANK', key_waiters, 0, waiters - 1) end
if waiters == 1000 then more = 1 end
if call('HLEN', key_jobs) == 0 then largest = 0 end
local next_cursor = next_lane == '0' and next_reservation == '0' and '0' or next_lane .. ':' .. next_reservation
return finish(pack('>I4I4I4I4I4B', succeeded, failed, lanes, reservations, waiters, more) .. next_cursor)
