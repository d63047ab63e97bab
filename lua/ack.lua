-- ack: ends running jobs: succeeded ones are removed (or kept), failed ones run again later or are failed for good.
-- KIND   write
-- NEEDS  base lane check_queue decorated simple_ack call_in_chunks late_clock new_ids notify admit lease leave_lease named_sources holds status suspect
-- KEYS   meta jobs extras leases lease_jobs running* | waiters tombstones ready* scheduled* failed* succeeded*
-- ARGV   lane sequence version more groups ids…
-- REPLY  refused: u16 positions (from 0) of ids that the caller does not hold
-- more: '' as most often; or u8 options (1 = leave a tombstone for each job that ends, 2 = jobs without a token may be of any source),
-- u16 length, sources (u8 length, bytes), statuses.

if replay then return stored end

-- Read: which jobs of a group the caller holds. ids: those jobs. flagged: those with extras. positions: of ids, in the call.
-- taken: an id that is named twice is held once, or its lease would lose two jobs for one.
local taken = {}

local function read_group(group)
  local base, n = group.base, group.n
  local values = group.priority <= priorities and call('HMGET', KEYS[running0 + group.priority], unpack(argv, ids0 + base + 1, ids0 + base + n)) or {}
  local ids, flagged, running, positions = {}, {}, {}, {}
  local i, m, at = 0, 0, group.runs
  while i < n do
    local token, run = unp('>c8I2', groups, at)
    for k = i + 1, i + run do
      local id, value = argv[ids0 + base + k], values[k]
      if not taken[id] and holds(value, token) then
        m, taken[id] = m + 1, true
        ids[m], running[m], positions[m] = id, value, base + k
        if byte(value, 11) % 2 == 1 then flagged[#flagged + 1] = id end
        leave_lease(value, group.priority, id)
      else
        refused[#refused + 1] = pack('>I2', base + k - 1)
      end
    end
    i, at = i + run, at + 10
  end
  group.ids, group.flagged, group.running, group.positions = ids, flagged, running, positions
  return m > 0
end

local held, timed = {}, keep > 0 or tombstones or counts_places
for _, group in ipairs(plan) do
  if read_group(group) then held[#held + 1] = group end
  timed = timed or group.kind == FAILED
end
local texts = read_statuses(statuses)
if timed then read_clock() end

-- The new extras of a job: from its old ones and the caller's status.
local function next_extra(old, left, text)
  return extra(left, now, old and unp('>I2', old, 9) % SUSPECT or 0, append_status(old and sub(old, 11) or '', text or ''))
end

local function extras_of(group)
  local found = {}
  if group.flagged[1] then
    for i, more in ipairs(call('HMGET', key_extras, unpack(group.flagged))) do found[group.flagged[i]] = more or nil end
  end
  return found
end

local function drop_records(ids, flagged)
  call_in_chunks('HDEL', key_jobs, ids)
  if flagged[1] then call_in_chunks('HDEL', key_extras, flagged) end
end

-- Trims what is over the cap, the oldest first; a little more than this ack added, so that a lowered cap is reached in time.
local function trim(priority, added)
  local over = call('ZCARD', KEYS[succeeded0 + priority]) - keep
  if over <= 0 then return end
  local popped, ids = call('ZPOPMIN', KEYS[succeeded0 + priority], math.min(over, added + 100)), {}
  for i = 1, #popped, 2 do ids[#ids + 1] = popped[i] end
  drop_records(ids, ids)
end

local function succeed(group)
  local ids = group.ids
  if keep == 0 then return drop_records(ids, group.flagged) end
  local found, kept, more = extras_of(group), {}, {}
  for i, id in ipairs(ids) do
    kept[2 * i - 1], kept[2 * i] = now, id
    local text = texts[group.positions[i]]
    if found[id] or text then
      more[#more + 1] = id
      more[#more + 1] = next_extra(found[id], unp('>I2', group.running[i], 9), text)
    end
  end
  call_in_chunks('ZADD', KEYS[succeeded0 + group.priority], kept)
  if more[1] then call_in_chunks('HSET', key_extras, more) end
  trim(group.priority, #ids)
end

-- Returns whether to notify, and the ids that failed for good.
local function fail(group)
  local found, ready, scheduled, failed, more, over = extras_of(group), {}, {}, {}, {}, {}
  for i, id in ipairs(group.ids) do
    local left = unp('>I2', group.running[i], 9) - 1
    local delay_ms = unp('>I6', groups, group.delays + 6 * (group.positions[i] - group.base - 1))
    local entries = left < 1 and failed or delay_ms == 0 and ready or scheduled
    entries[#entries + 1], entries[#entries + 2] = left < 1 and now or now + delay_ms, entries == ready and id .. DECORATED or id
    if left < 1 then over[#over + 1] = id end
    more[2 * i - 1], more[2 * i] = id, next_extra(found[id], math.max(left, 0), texts[group.positions[i]])
  end
  call_in_chunks('HSET', key_extras, more)
  if failed[1] then call_in_chunks('ZADD', KEYS[failed0 + group.priority], failed) end
  return admit(group.priority, ready, scheduled), over
end

-- Write.
local wake, ended = false, {}
for _, group in ipairs(held) do
  call_in_chunks('HDEL', KEYS[running0 + group.priority], group.ids)
  local over = group.ids
  if group.kind == SUCCEEDED then
    succeed(group)
  else
    local notified
    notified, over = fail(group)
    wake = wake or notified
  end
  for i = 1, tombstones and #over or 0 do
    ended[#ended + 1], ended[#ended + 2] = over[i], now
  end
end
if ended[1] then call_in_chunks('HSET', key_tombstones, ended) end
settle_leases()
if counts_places then
  -- HERE free_places
  wake = wake and not due
end
if wake then notify() end
return finish(concat(refused))
