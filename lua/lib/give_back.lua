-- What becomes of jobs whose worker died: back in line, or failed.
-- Without a crash limit a crash costs an attempt, as PinLater has it. With one it costs none: the crash that reaches the limit fails the job,
-- each is told in the status, and if there is a quarantine queue, quarantined names the job for the monitor that moves it there.
-- reads: admit append_status claim_of config created_ms extra lease_of levels now ODD old_place send SOLE_BYTES utc
-- sets:  APART APART_MS begun_ids counts crash_limit end_lease end_sole_lease evidence give_back last_chances moves
local crash_limit = #config >= CONFIG_CRASH_LIMIT_END and unp('>I2', config, CONFIG_CRASH_LIMIT) or 0
local moves = (byte(config, CONFIG_QUARANTINE_LENGTH) or 0) > 0
-- Jobs that may not crash once more come back one after the other, so that the one to blame takes no others with it: a thirtieth of a
-- lease apart, and after a hundred from the first again.
local APART_MS, APART = unp('>I4', config, CONFIG_LEASE_MS) / 30, 100
local last_chances = 0
local counts = { leases = 0, jobs = 0, retried = 0, failed = 0, unbegun = 0 }
-- As keys, if it is known: only these have crashed.
local begun_ids

-- claim: the claim descriptor, or ''. how: what is known of the worker's end, or ''.
local function evidence(crash, token, claim, how)
  local what = how == '' and 'lease ran out' or 'worker process ' .. how
  return string.format('%s (crash %d of %d)\n', what, crash, crash_limit)
    .. string.format('  claim %s, claimed %s, given back %s\n', claim == '' and 'unknown' or claim, utc(created_ms(token)), utc(now))
end

-- Jobs of one level that still belong to this lease. Returns whether a waiter has a reason to wake.
local function give_back(level, ids, lease, claim, how)
  local values = call('HMGET', KEYS[running0 + level], unpack(ids))
  local gone, held, unbegun, ready = {}, {}, {}, {}
  for i, value in ipairs(values) do
    if value and lease_of(value, level, ids[i]) == lease then
      if begun_ids and not begun_ids[ids[i]] then
        unbegun[#unbegun + 1] = ids[i]
        ready[#ready + 1], ready[#ready + 2] = old_place(ids[i], value)
      else
        gone[#gone + 1], held[#held + 1] = ids[i], value
      end
    end
  end
  if unbegun[1] then send('HDEL', KEYS[running0 + level], unbegun) end
  counts.unbegun = counts.unbegun + #unbegun
  if not gone[1] then return admit(level, ready, {}) end
  local extras = call('HMGET', key_extras, unpack(gone))
  local scheduled, failed, more, moving = {}, {}, {}, {}
  for i, id in ipairs(gone) do
    local old = byte(held[i], 11) % 2 == 1 and extras[i]
    local crashes = math.min((old and unp('>I2', old, 9) or 0) + 1, 65535)
    local left, status, apart = unp('>I2', held[i], 9), old and sub(old, 11) or '', 0
    if crash_limit == 0 then
      left = math.max(left - 1, 0)
    else
      status = append_status(status, evidence(crashes, held[i], claim, how))
      if crashes >= crash_limit then
        left = 0
        if moves then moving[#moving + 1], moving[#moving + 2] = string.char(level) .. id, '' end
      elseif crashes == crash_limit - 1 then
        apart = floor(last_chances % APART * APART_MS)
        last_chances = last_chances + 1
      end
    end
    local line = left < 1 and failed or apart > 0 and scheduled or ready
    line[#line + 1], line[#line + 2] = now + apart, line == ready and id .. ODD or id
    more[2 * i - 1], more[2 * i] = id, extra(left, now, crashes, status)
  end
  send('HDEL', KEYS[running0 + level], gone)
  send('HSET', key_extras, more)
  if failed[1] then send('ZADD', KEYS[failed0 + level], failed) end
  if moving[1] then send('HSET', key_quarantined, moving) end
  counts.retried, counts.failed = counts.retried + (#ready + #scheduled) / 2 - #unbegun, counts.failed + #failed / 2
  return admit(level, ready, scheduled)
end

local function end_sole_lease(lease, how)
  local level, id, wake = byte(lease), sub(lease, 2, 9), false
  local running = level <= levels and call('HGET', KEYS[running0 + level], id)
  if running then wake = give_back(level, { id }, lease, claim_of(running), how) end
  call('ZREM', key_leases, lease)
  counts.jobs, counts.leases = counts.jobs + 1, counts.leases + 1
  return wake
end

-- All jobs of a lease, and the lease itself.
local function end_lease(lease, how)
  if #lease == SOLE_BYTES then return end_sole_lease(lease, how) end
  local entry, wake = call('HGET', key_lease_jobs, lease), false
  local at, last = 3, entry and 2 + unp('>I2', entry) or 0
  local claim = entry and sub(entry, last + 1) or ''
  while at <= last do
    local level, n = unp('>BI2', entry, at)
    local ids = {}
    for i = 1, n do ids[i] = sub(entry, at + 8 * i - 5, at + 8 * i + 2) end
    wake = give_back(level, ids, lease, claim, how) or wake
    counts.jobs = counts.jobs + n
    at = at + 3 + 8 * n
  end
  call('HDEL', key_lease_jobs, lease, lease .. 'n')
  call('ZREM', key_leases, lease)
  counts.leases = counts.leases + 1
  return wake
end
