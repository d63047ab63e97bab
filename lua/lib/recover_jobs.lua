-- Recovers the jobs of a dead worker: they are ready again, or failed. Without a crash limit a crash costs an attempt, which is PinLater's rule. With
-- a limit it costs none, and the status reports each crash. The crash that reaches the limit fails the job; with a quarantine queue, `quarantined` then
-- names it for the monitor, which moves it there.
-- reads: admit append_status claim_of config created_ms extra lease_of priorities now DECORATED original_score call_in_chunks SINGLE_LEASE_BYTES utc
-- sets:  APART APART_MS started_ids counts crash_limit end_lease end_single_lease evidence is_full recover_jobs last_chances moves
local crash_limit = #config >= CONFIG_CRASH_LIMIT_END and unp('>I2', config, CONFIG_CRASH_LIMIT) or 0
local moves = (byte(config, CONFIG_QUARANTINE_LENGTH) or 0) > 0
-- Jobs with one crash left come back one after the other, so that the one to blame takes no others with it: a thirtieth of a
-- lease apart, and after a hundred from the beginning again.
local APART_MS, APART = unp('>I4', config, CONFIG_LEASE_MS) / 30, 100
local last_chances = 0
local counts = { leases = 0, jobs = 0, bytes = 0, retried = 0, failed = 0, unstarted = 0 }

-- Whether a call is to end no more leases. The jobs of one lease are recovered together.
local function is_full()
  return counts.jobs >= CALL_JOBS or counts.leases >= CALL_JOBS or counts.bytes >= CALL_BYTES
end

-- ids as keys: only these jobs have crashed. nil: all have.
local started_ids

-- claim: the claim descriptor, or ''. how: how the worker ended, or ''.
local function evidence(crash, token, claim, how)
  local what = how == '' and 'lease ran out' or 'worker process ' .. how
  return string.format('%s (crash %d of %d)\n', what, crash, crash_limit)
    .. string.format('  claim %s, claimed %s, recovered %s\n', claim == '' and 'unknown' or claim, utc(created_ms(token)), utc(now))
end

-- Jobs of one priority that still belong to this lease. Returns whether a waiter has a reason to wake.
local function recover_jobs(priority, ids, lease, claim, how)
  local values = call('HMGET', KEYS[running0 + priority], unpack(ids))
  local crashed, held, unstarted, ready = {}, {}, {}, {}
  for i, value in ipairs(values) do
    if value and lease_of(value, priority, ids[i]) == lease then
      if started_ids and not started_ids[ids[i]] then
        unstarted[#unstarted + 1] = ids[i]
        ready[#ready + 1], ready[#ready + 2] = original_score(ids[i], value)
      else
        crashed[#crashed + 1], held[#held + 1] = ids[i], value
      end
    end
  end
  if unstarted[1] then call_in_chunks('HDEL', KEYS[running0 + priority], unstarted) end
  counts.unstarted = counts.unstarted + #unstarted
  if not crashed[1] then return admit(priority, ready, {}) end
  local extras = call('HMGET', key_extras, unpack(crashed))
  local scheduled, failed, more, moving = {}, {}, {}, {}
  for i, id in ipairs(crashed) do
    local old = byte(held[i], 11) % 2 == 1 and extras[i]
    counts.bytes = counts.bytes + (old and #old or 0)
    local crashes = math.min((old and unp('>I2', old, 9) or 0) + 1, 65535)
    local left, status, apart = unp('>I2', held[i], 9), old and sub(old, 11) or '', 0
    if crash_limit == 0 then
      left = math.max(left - 1, 0)
    else
      status = append_status(status, evidence(crashes, held[i], claim, how))
      if crashes >= crash_limit then
        left = 0
        if moves then moving[#moving + 1], moving[#moving + 2] = string.char(priority) .. id, '' end
      elseif crashes == crash_limit - 1 then
        apart = floor(last_chances % APART * APART_MS)
        last_chances = last_chances + 1
      end
    end
    local entries = left < 1 and failed or apart > 0 and scheduled or ready
    entries[#entries + 1], entries[#entries + 2] = now + apart, entries == ready and id .. DECORATED or id
    more[2 * i - 1], more[2 * i] = id, extra(left, now, crashes, status)
  end
  call_in_chunks('HDEL', KEYS[running0 + priority], crashed)
  call_in_chunks('HSET', key_extras, more)
  if failed[1] then call_in_chunks('ZADD', KEYS[failed0 + priority], failed) end
  if moving[1] then call_in_chunks('HSET', key_quarantined, moving) end
  counts.retried, counts.failed = counts.retried + (#ready + #scheduled) / 2 - #unstarted, counts.failed + #failed / 2
  return admit(priority, ready, scheduled)
end

local function end_single_lease(lease, how)
  local priority, id, wake = byte(lease), sub(lease, 2, 9), false
  local running = priority <= priorities and call('HGET', KEYS[running0 + priority], id)
  if running then wake = recover_jobs(priority, { id }, lease, claim_of(running), how) end
  call('ZREM', key_leases, lease)
  counts.jobs, counts.leases = counts.jobs + 1, counts.leases + 1
  return wake
end

-- All jobs of a lease, and the lease itself.
local function end_lease(lease, how)
  if #lease == SINGLE_LEASE_BYTES then return end_single_lease(lease, how) end
  local entry, wake = call('HGET', key_lease_jobs, lease), false
  local at, last = 3, entry and 2 + unp('>I2', entry) or 0
  local claim = entry and sub(entry, last + 1) or ''
  while at <= last do
    local priority, n = unp('>BI2', entry, at)
    local ids = {}
    for i = 1, n do ids[i] = sub(entry, at + 8 * i - 5, at + 8 * i + 2) end
    wake = recover_jobs(priority, ids, lease, claim, how) or wake
    counts.jobs = counts.jobs + n
    at = at + 3 + 8 * n
  end
  call('HDEL', key_lease_jobs, lease, lease .. 'n')
  call('ZREM', key_leases, lease)
  counts.leases = counts.leases + 1
  return wake
end
