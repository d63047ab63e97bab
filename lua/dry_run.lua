-- dry_run: what a claim would give, without taking it. Ids without a record, which a claim passes over, are left out.
-- KIND   read
-- NEEDS  base check_read clock before rank_of position fetch_records
-- KEYS   meta jobs extras ready* scheduled*
-- ARGV   nonce version limit budget after
-- REPLY  after ('' = the end), then as claim, without a token; all lists of records
-- after: u8 priority, then the position behind which the page begins; '' at first. Jobs before that position are not counted as left.

local want, most = tonumber(limit), tonumber(budget)
if want > 1000 then return redis.error_reply('TOO_MANY jobs: expected a limit of at most 1000, got ' .. want) end
if want < 1 then return redis.error_reply('BAD_REQUEST limit: expected 1 to 1000, got ' .. want) end
local first_priority, from_score, from_id = 1, nil, nil
if after ~= '' then
  first_priority, from_score, from_id = byte(after), position_at(sub(after, 2))
  if not from_score then return redis.error_reply('BAD_REQUEST after: expected a priority, an id and a score') end
end
-- HERE pause_times
local paused = flags % 2 == 1 or end_ms > now

-- How many of a set of this priority stand behind the page before.
local function behind(key, priority)
  return from_score and priority == first_priority and rank_of(key, from_score, from_id, true) or 0
end

-- The first n of a priority in the order a claim takes them: ready and due, by run-after, then id.
local function first_jobs(priority, n, in_ready, in_scheduled, due)
  local jobs = {}
  local ready = call('ZRANGE', KEYS[ready0 + priority], in_ready, in_ready + n - 1, 'WITHSCORES')
  local scheduled = due > in_scheduled and call('ZRANGE', KEYS[scheduled0 + priority], in_scheduled, math.min(in_scheduled + n, due) - 1, 'WITHSCORES') or {}
  for _, jobs_of in ipairs({ ready, scheduled }) do
    for i = 1, #jobs_of, 2 do jobs[#jobs + 1] = { tonumber(jobs_of[i + 1]), sub(jobs_of[i], 1, 8), jobs_of == scheduled or #jobs_of[i] > 8 } end
  end
  table.sort(jobs, function(a, b) return earlier(a[1], a[2], b[1], b[2]) end)
  for i = #jobs, n + 1, -1 do jobs[i] = nil end
  return jobs
end

-- Ids of jobs, and which of them are decorated.
local function ids_of(jobs)
  local ids, decorated = {}, {}
  for i, job in ipairs(jobs) do ids[i], decorated[i] = job[2], job[3] end
  return ids, decorated
end

-- full: jobs of a priority are left, so those of lower ones come in another page
local blocks, lists, left, total, full, last = {}, {}, {}, 0, false, after
for priority = 1, priorities do
  local ready, scheduled = KEYS[ready0 + priority], KEYS[scheduled0 + priority]
  local due, in_ready, in_scheduled, considered = 0, 0, 0, 0
  if priority >= first_priority then
    due, in_ready, in_scheduled = call('ZCOUNT', scheduled, '-inf', now), behind(ready, priority), behind(scheduled, priority)
  end
  local remaining = priority >= first_priority and call('ZCARD', ready) - in_ready + math.max(due - in_scheduled, 0) or 0
  local n = (paused or full) and 0 or want - total
  if n > 0 and remaining > 0 then
    local jobs = first_jobs(priority, n, in_ready, in_scheduled, due)
    considered = #jobs
    local ids, decorated = ids_of(jobs)
    local records, count = fetch(ids, most, decorated)
    if not records then
      ids = part(ids)
      records, count = fetch(ids, most)
    end
    if count < #ids then
      considered = 0
      while jobs[considered + 1][2] ~= ids[count + 1] do considered = considered + 1 end
    end
    if considered > 0 then last = string.char(priority) .. position_of(jobs[considered][1], jobs[considered][2]) end
    if count > 0 then
      local lefts = {}
      for i, extra in ipairs(call('HMGET', key_extras, unpack(ids, 1, count))) do
        if extra then lefts[#lefts + 1] = pack('>I2', i - 1) .. sub(extra, 1, 2) end
      end
      for _, list in ipairs(records) do lists[#lists + 1] = list end
      blocks[#blocks + 1] = pack('>BI2', priority, count) .. concat(ids, '', 1, count) .. pack('>I2', #lefts) .. concat(lefts)
      total = total + count
    end
  end
  full = full or remaining > considered and not paused
  left[priority] = pack('>I4', remaining - considered)
end
local head = '\0\0\0\0\0\0\0\0' .. '\0\0\0\0\0\0' .. string.char(paused and 1 or 0, priorities)
return { nonce, h, full and last or '', head .. concat(left) .. concat(blocks), unpack(lists) }
