-- dry_run: what a claim would give, without taking it. Ids without a record, which a claim passes over, are left out of the first n.
-- KIND   read
-- NEEDS  base check_read clock before fetch_records
-- KEYS   meta jobs extras ready* scheduled*
-- ARGV   nonce version limit budget
-- REPLY  as claim, without a token; all lists of records

local want, most = tonumber(limit), tonumber(budget)
if want > 1000 then return redis.error_reply('TOO_MANY jobs: expected a limit of at most 1000, got ' .. want) end
if want < 1 then return redis.error_reply('BAD_REQUEST limit: expected 1 to 1000, got ' .. want) end
local paused = byte(config, CONFIG_FLAGS) % 2 == 1

-- The first n of a priority in the order a claim takes them: ready and due, by run-after, then id. Also which of them are decorated.
local function first_jobs(priority, n)
  local jobs = {}
  local ready = call('ZRANGE', KEYS[ready0 + priority], 0, n - 1, 'WITHSCORES')
  local due = call('ZRANGE', KEYS[scheduled0 + priority], '-inf', now, 'BYSCORE', 'LIMIT', 0, n, 'WITHSCORES')
  for _, jobs_of in ipairs({ ready, due }) do
    for i = 1, #jobs_of, 2 do jobs[#jobs + 1] = { tonumber(jobs_of[i + 1]), sub(jobs_of[i], 1, 8), jobs_of == due or #jobs_of[i] > 8 } end
  end
  table.sort(jobs, function(a, b) return a[1] < b[1] or (a[1] == b[1] and before(a[2], b[2])) end)
  local first, decorated = {}, {}
  for i = 1, math.min(n, #jobs) do first[i], decorated[i] = jobs[i][2], jobs[i][3] end
  return first, decorated
end

local blocks, lists, left, total, full = {}, {}, {}, 0, false
for priority = 1, priorities do
  local due = call('ZCARD', KEYS[ready0 + priority]) + call('ZCOUNT', KEYS[scheduled0 + priority], '-inf', now)
  local n = (paused or full) and 0 or want - total
  local ids, decorated = {}, nil
  if n > 0 and due > 0 then ids, decorated = first_jobs(priority, n) end
  local records, count = fetch(ids, most, decorated)
  if not records then
    ids = part(ids)
    records, count = fetch(ids, most)
  end
  full = full or count < #ids
  if count > 0 then
    local lefts = {}
    for i, more in ipairs(call('HMGET', key_extras, unpack(ids, 1, count))) do
      if more then lefts[#lefts + 1] = pack('>I2', i - 1) .. sub(more, 1, 2) end
    end
    for _, list in ipairs(records) do lists[#lists + 1] = list end
    blocks[#blocks + 1] = pack('>BI2', priority, count) .. concat(ids, '', 1, count) .. pack('>I2', #lefts) .. concat(lefts)
    total = total + count
  end
  left[priority] = pack('>I4', due - count)
end
local head = '\0\0\0\0\0\0\0\0' .. '\0\0\0\0\0\0' .. string.char(paused and 1 or 0, priorities)
return { nonce, h, head .. concat(left) .. concat(blocks), unpack(lists) }
