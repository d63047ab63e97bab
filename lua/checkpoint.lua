-- checkpoint: keeps a running job's progress (body, attempts, status), and renews its lease or makes it pending again.
-- KIND   write
-- NEEDS  base call_in_chunks lane check_queue clock decorated new_ids notify admit lease leave_lease own_lease one_source holds status suspect
-- KEYS   meta waiters jobs extras leases lease_jobs ready* scheduled* running*
-- ARGV   lane sequence version source items statuses bodies…
-- REPLY  u16 how many of the items this call came to, refused: u16 positions (from 0) of jobs among them that the caller does not hold
-- items, 34 bytes a job: u8 priority, id (8), token (8), u8 what (1 body, 2 move to pending, 4 attempts, 8 status, 16 a lease of its own),
-- u8 kind (0 now, 1 absolute, 2 delay), u48 ms, u16 attempts, 7 bytes of zero. statuses: as for enqueue. bodies: of the items that have one, in order.
-- A call ends after CALL_BYTES of records and statuses; one job is always done.

if replay then return stored end
local ITEM = 34
local count = #items / ITEM
if count > 1000 then return redis.error_reply('TOO_MANY jobs: expected at most 1000, got ' .. count) end
if count % 1 ~= 0 then return redis.error_reply('BAD_REQUEST the items are cut off') end

-- seen: of a job that is named twice the first counts, so that it is made ready once.
local jobs, seen, refused, body_count = {}, {}, {}, 0
for i = 1, count do
  local priority, id, token, what, kind, ms, attempts = unp('>Bc8c8BBI6I2', items, ITEM * (i - 1) + 1)
  if priority < 1 then return redis.error_reply('BAD_REQUEST no priority ' .. priority) end
  local body
  if what % 2 == 1 then
    body_count = body_count + 1
    body = ARGV[bodies0 + body_count]
    if not body then return redis.error_reply('BAD_REQUEST a body is missing') end
  end
  if floor(what / 4) % 2 == 1 and attempts < 1 then return redis.error_reply('BAD_REQUEST attempts: expected 1 to 65535, got 0') end
  local running = not seen[id] and priority <= priorities and call('HGET', KEYS[running0 + priority], id)
  -- without its record there is nothing to rewrite
  local whole = what % 2 == 0 and floor(what / 4) % 2 == 0 or call('HEXISTS', key_jobs, id) == 1
  if whole and holds(running, token) then
    seen[id] = true
    jobs[#jobs + 1] = {
      priority = priority, id = id, running = running, body = body, position = i,
      move = floor(what / 2) % 2 == 1, kind = kind, ms = ms,
      attempts = floor(what / 4) % 2 == 1 and attempts or nil, status = floor(what / 8) % 2 == 1,
      own = floor(what / 16) % 2 == 1,
    }
  else
    refused[#refused + 1] = i - 1
  end
end
local texts = read_statuses(statuses)

-- Returns how many bytes it read.
local function keep_record(job)
  if not job.body and not job.attempts then return 0 end
  local old = call('HGET', key_jobs, job.id)
  local allowed = job.attempts and pack('>I2', job.attempts) or sub(old, 2, 3)
  local record = sub(old, 1, 1) .. allowed .. (job.body and sub(old, 4, 4) .. job.body or sub(old, 4))
  call('HSET', key_jobs, job.id, record)
  largest = math.max(largest, #record)
  return #old + (job.body and #job.body or 0)
end

local wake, moved, expires, bytes, done = false, false, now + unp('>I4', config, CONFIG_LEASE_MS), 0, count
for _, job in ipairs(jobs) do
  if bytes >= CALL_BYTES then
    done = job.position - 1
    break
  end
  local lease, running = lease_of(job.running, job.priority, job.id), job.running
  local left = job.attempts or unp('>I2', running, 9)
  local old = byte(running, 11) % 2 == 1 and call('HGET', key_extras, job.id)
  local status = old and sub(old, 11) or ''
  if job.status then status = prepend_status(status, texts[job.position] or '') end
  bytes = bytes + keep_record(job) + #status
  local crashes = old and unp('>I2', old, 9) or 0
  call('HSET', key_extras, job.id, extra(left, now, job.move and crashes % SUSPECT or crashes, status))
  if job.move then
    moved = true
    call('HDEL', KEYS[running0 + job.priority], job.id)
    leave_lease(running, job.priority, job.id)
    local at = job.kind == 0 and now or job.kind == 2 and now + job.ms or job.ms
    wake = admit(job.priority, at <= now and { at, job.id .. DECORATED } or {}, at > now and { at, job.id } or {}) or wake
  else
    local job_flags = byte(running, 11)
    running = sub(running, 1, 8) .. pack('>I2B', left, job_flags % 2 == 1 and job_flags or job_flags + 1) .. sub(running, 12)
    if job.own and job_flags < 4 then
      -- several workers may share a claim, and only this one says that it lives
      lease = own_lease(job.priority, job.id, running)
    else
      call('HSET', KEYS[running0 + job.priority], job.id, running)
    end
    call('ZADD', key_leases, 'GT', expires, lease)
  end
end
settle_leases()
if moved and flags % 16 >= FLAG_MAX_RUNNING then
  -- HERE free_places
  wake = wake and not due
end
if wake then notify() end
local reply = { pack('>I2', done) }
for _, position in ipairs(refused) do
  if position < done then reply[#reply + 1] = pack('>I2', position) end
end
return finish(concat(reply))
