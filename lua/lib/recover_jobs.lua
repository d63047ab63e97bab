-- Recovers the jobs of a dead worker: they are ready again, or failed. Without a crash limit a crash costs an attempt, which is PinLater's rule. With
-- a limit it costs none, and the status reports each crash. The crash that reaches the limit fails the job; with a quarantine queue, `quarantined` then
-- names it for the monitor, which moves it there.
-- The end of an unconfirmed lease (lib/lease_end) costs nothing: its jobs never began. The tenth in a row for one job is a crash.
-- reads: DECORATED SUSPECT append_status call_in_chunks claim_of config created_ms extra lease_of next_score now original_score priorities utc
-- sets:  failed_jobs started_ids counts crash_limit end_lease end_single_lease evidence is_full recover_jobs moves
local crash_limit = #config >= CONFIG_CRASH_LIMIT_END and unp('>I2', config, CONFIG_CRASH_LIMIT) or 0
local moves = (byte(config, CONFIG_QUARANTINE_LENGTH) or 0) > 0
local counts = { leases = 0, jobs = 0, bytes = 0, retried = 0, failed = 0, unstarted = 0 }

-- Whether this lease is to wait for the next call. The jobs of one lease are recovered together: up to 500, if they are all of a call.
local function is_full(lease)
  local jobs = #lease == 8 and call('HGET', key_lease_jobs, lease .. 'n') or 1
  return counts.leases > 0 and (counts.jobs + tonumber(jobs) > CALL_JOBS or counts.leases >= CALL_JOBS or counts.bytes >= CALL_BYTES)
end

-- u8 priority, id: of each job that failed, and is not to be moved
local failed_jobs = {}
-- ids as keys: only these jobs have crashed. nil: all have.
local started_ids

-- claim: the claim descriptor, or ''. how: how the worker ended, or ''.
local function evidence(crash, token, claim, how)
  local what = how == '' and 'lease ran out' or 'worker process ' .. how
  return string.format('%s (crash %d of %d)\n', what, crash, crash_limit)
    .. string.format('  claim %s, claimed %s, recovered %s\n', claim == '' and 'unknown' or claim, utc(created_ms(token)), utc(now))
end

-- Jobs of one priority that still belong to this lease. Returns whether a waiter has a reason to wake.
local function recover_jobs(priority, ids, lease, claim, how, unconfirmed)
  local values = call('HMGET', KEYS[running0 + priority], unpack(ids))
  local crashed, held, unstarted, ready = {}, {}, {}, {}
  for i, value in ipairs(values) do
    if value and lease_of(value, priority, ids[i]) == lease then
      local score, member
      if started_ids then
        if not started_ids[ids[i]] then score, member = original_score(ids[i], value) end
      elseif unconfirmed then
        score, member = next_score(ids[i], value)
      end
      if score then
        unstarted[#unstarted + 1] = ids[i]
        ready[#ready + 1], ready[#ready + 2] = score, member
      else
        crashed[#crashed + 1], held[#held + 1] = ids[i], value
      end
    end
  end
  if unstarted[1] then call_in_chunks('HDEL', KEYS[running0 + priority], unstarted) end
  counts.unstarted = counts.unstarted + #unstarted
  if not crashed[1] then
    if ready[1] then call_in_chunks('ZADD', KEYS[ready0 + priority], ready) end
    return ready[1] ~= nil
  end
  local extras = call('HMGET', key_extras, unpack(crashed))
  local failed, more, moving = {}, {}, {}
  for i, id in ipairs(crashed) do
    local old = byte(held[i], 11) % 2 == 1 and extras[i]
    counts.bytes = counts.bytes + (old and #old or 0)
    local crashes = math.min((old and unp('>I2', old, 9) % SUSPECT or 0) + 1, SUSPECT - 1)
    local left, status = unp('>I2', held[i], 9), old and sub(old, 11) or ''
    if crash_limit == 0 then
      left = math.max(left - 1, 0)
    else
      status = append_status(status, evidence(crashes, held[i], claim, how))
      if crashes >= crash_limit then
        left = 0
        if moves then moving[#moving + 1], moving[#moving + 2] = string.char(priority) .. id, '' end
      end
    end
    if left < 1 and not (moves and crash_limit > 0) then failed_jobs[#failed_jobs + 1] = string.char(priority) .. id end
    local entries = left < 1 and failed or ready
    entries[#entries + 1], entries[#entries + 2] = now, entries == ready and id .. DECORATED or id
    more[2 * i - 1], more[2 * i] = id, extra(left, now, crashes + SUSPECT, status)
  end
  call_in_chunks('HDEL', KEYS[running0 + priority], crashed)
  call_in_chunks('HSET', key_extras, more)
  if failed[1] then call_in_chunks('ZADD', KEYS[failed0 + priority], failed) end
  if moving[1] then call_in_chunks('HSET', key_quarantined, moving) end
  counts.retried, counts.failed = counts.retried + #ready / 2 - #unstarted, counts.failed + #failed / 2
  if ready[1] then call_in_chunks('ZADD', KEYS[ready0 + priority], ready) end
  return ready[1] ~= nil
end

local function end_single_lease(lease, how, unconfirmed)
  local priority, id, wake = byte(lease), sub(lease, 2, 9), false
  local running = priority <= priorities and call('HGET', KEYS[running0 + priority], id)
  if running then wake = recover_jobs(priority, { id }, lease, claim_of(running), how, unconfirmed) end
  call('ZREM', key_leases, lease)
  counts.jobs, counts.leases = counts.jobs + 1, counts.leases + 1
  return wake
end

-- All jobs of a lease, and the lease itself: a token (8), or a longer name without an entry in lease_jobs. score: of leases, or false.
local function end_lease(lease, how, score)
  local unconfirmed = score and score % 1 > 0
  if #lease > 8 then return end_single_lease(lease, how, unconfirmed) end
  local entry, wake = call('HGET', key_lease_jobs, lease), false
  local at, last = 3, entry and 2 + unp('>I2', entry) or 0
  local claim = entry and sub(entry, last + 1) or ''
  while at <= last do
    local priority, n = unp('>BI2', entry, at)
    local ids = {}
    for i = 1, n do ids[i] = sub(entry, at + 8 * i - 5, at + 8 * i + 2) end
    wake = recover_jobs(priority, ids, lease, claim, how, unconfirmed) or wake
    counts.jobs = counts.jobs + n
    at = at + 3 + 8 * n
  end
  call('HDEL', key_lease_jobs, lease, lease .. 'n')
  call('ZREM', key_leases, lease)
  counts.leases = counts.leases + 1
  return wake
end
