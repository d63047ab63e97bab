-- scan: one page of the jobs of a state and priority, latest time first.
-- KIND   read
-- NEEDS  base check_read clock lease before rank_of position created_ms suspect job_info
-- KEYS   meta jobs extras lease_jobs ready* scheduled* withdrawn* running* failed* succeeded*
-- ARGV   nonce version state priority future cursor limit with_bodies budget
-- REPLY  next cursor ('' = the end), sixteenths of a ms in the score of each job (a byte; none of running jobs), job info…
-- state: 0 pending (future '0': due now, '1': due later), 1 in progress, 2 succeeded, 3 failed. cursor: '' at first; else the page begins below that
-- position, which need not be a job. Running jobs come in no order, and a job may come twice (HSCAN): the caller drops what it has seen.
-- budget: bytes of records and statuses, which are read without bodies too; one job is always given.

local most, at, bodies = tonumber(limit), tonumber(priority), with_bodies == '1'
if most > 1000 then return redis.error_reply('TOO_MANY jobs: expected a limit of at most 1000, got ' .. most) end
if most < 1 or at < 1 or at > priorities then return redis.error_reply('BAD_REQUEST no such limit or priority') end

local reply, bytes, budget_bytes, given, sixteenths = { nonce, h, '', '' }, 0, tonumber(budget), 0, {}

-- false: the page is full
local function give(kind, id, value)
  if bytes >= budget_bytes or given == most then return false end
  local record = call('HGET', key_jobs, id)
  if not record then return true end
  local more = call('HGET', key_extras, id)
  local size = #record + (more and #more or 0)
  if bytes > 0 and bytes + size > budget_bytes then return false end
  bytes, given = bytes + size, given + 1
  sixteenths[given] = kind == RUNNING and '' or string.char(value % 1 * 16)
  reply[#reply + 1] = info(kind, at, id, record, more, value, bodies)
  return true
end

-- The cursor of running jobs: that of HSCAN, then ':' and the ids of its last page that are still to be given, as HSCAN never gives them again.
if state == '1' then
  local key, from, rest = KEYS[running0 + at], string.match(cursor, '^(%d+)') or '0', {}
  for first = #from + 2, #cursor, 8 do rest[#rest + 1] = sub(cursor, first, first + 7) end
  local values = {}
  if rest[1] then
    values = call('HMGET', key, unpack(rest, 1, math.min(#rest, 1000)))
  else
    local page = call('HSCAN', key, from, 'COUNT', most)
    from = page[1]
    for i = 1, #page[2], 2 do rest[#rest + 1], values[#values + 1] = page[2][i], page[2][i + 1] end
  end
  for i, id in ipairs(rest) do
    if i > 1000 or values[i] and not give(RUNNING, id, values[i]) then
      reply[3] = from .. ':' .. concat(rest, '', i)
      return reply
    end
  end
  reply[3] = from == '0' and '' or from
  return reply
end

local from_score, from_id
if cursor ~= '' then from_score, from_id = position_at(cursor) end

-- A decorated member of ready counts by its id: ties go by id alone.
-- The next jobs of one set below the cursor, latest first: { score, id }; only scores in (above, upto].
local function page_of(key, above, upto)
  local last = call('ZCOUNT', key, '-inf', upto)
  if from_id then last = math.min(last, rank_of(key, from_score, from_id)) end
  local jobs = {}
  if last == 0 then return jobs end
  local members = call('ZRANGE', key, math.max(last - most, 0), last - 1, 'WITHSCORES')
  for i = #members - 1, 1, -2 do
    if tonumber(members[i + 1]) > above then jobs[#jobs + 1] = { tonumber(members[i + 1]), sub(members[i], 1, 8) } end
  end
  return jobs
end

local kind, pages = tonumber(state), nil
if kind == PENDING and future == '1' then
  pages = { page_of(KEYS[scheduled0 + at], now, '+inf'), page_of(KEYS[withdrawn0 + at], now, '+inf') }
elseif kind == PENDING then
  pages = { page_of(KEYS[ready0 + at], -1, '+inf'), page_of(KEYS[scheduled0 + at], -1, now), page_of(KEYS[withdrawn0 + at], -1, now) }
else
  pages = { page_of(KEYS[(kind == SUCCEEDED and succeeded0 or failed0) + at], -1, '+inf') }
end

-- Which page has the latest job of those that are still to be given; nil: all were given. next_of: the first such job of each page.
local next_of, looked = { 1, 1, 1 }, 0
local function latest_page()
  local latest, of
  for i, page in ipairs(pages) do
    local job = page[next_of[i]]
    if job and not (latest and earlier(job[1], job[2], latest[1], latest[2])) then latest, of = job, i end
  end
  return of, latest
end

local of, job = latest_page()
while looked < most and of and give(kind, job[2], job[1]) do
  reply[3] = position_of(job[1], job[2])
  looked, next_of[of] = looked + 1, next_of[of] + 1
  of, job = latest_page()
end
if not of and looked < most then reply[3] = '' end
reply[4] = concat(sixteenths)
return reply
