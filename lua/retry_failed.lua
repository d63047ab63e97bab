-- retry_failed: makes failed jobs of a priority pending again, the oldest first, or those named.
-- KIND   write
-- NEEDS  base call_in_chunks lane check_queue clock decorated new_ids notify admit status suspect
-- KEYS   meta waiters jobs extras ready* scheduled* failed*
-- ARGV   lane sequence version priority limit attempts kind ms ids…
-- REPLY  u32 how many, u8 more are left (of the ids: that this call did not come to)
-- limit: how many at most (1 to 1000; '0': only the ids). kind, ms: when (0 now, 1 absolute, 2 delay).
-- A call ends after CALL_BYTES of records and statuses, or CALL_JOBS jobs; one job is always done.
-- Crashes count from 0 again. A job that gets more attempts than its record allows is allowed as many from now on, so that its attempts add up.

if replay then return stored end
local at, most, left = tonumber(priority), tonumber(limit), tonumber(attempts)
local named = #ARGV - ids0
if most > 1000 or named > 1000 then return redis.error_reply('TOO_MANY jobs: expected at most 1000, got ' .. math.max(most, named)) end
if at > priorities and most == 0 then return finish(pack('>I4B', 0, 0)) end
if at < 1 or at > priorities or left < 1 or left > 65535 then return redis.error_reply('BAD_REQUEST no such priority or attempts') end

local failed, ids = KEYS[failed0 + at], {}
if named > 0 then
  local seen = {}
  for i, score in ipairs(call('ZMSCORE', failed, unpack(ARGV, ids0 + 1, ids0 + named))) do
    local id = ARGV[ids0 + i]
    if score and not seen[id] then ids[#ids + 1] = id end
    seen[id] = true
  end
elseif most > 0 then
  ids = call('ZRANGE', failed, 0, math.min(most, CALL_JOBS) - 1)
end
if not ids[1] then return finish(pack('>I4B', 0, 0)) end

local more_left = 0
local function cut(first)
  for k = #ids, first, -1 do ids[k] = nil end
  more_left = 1
end

if #ids > CALL_JOBS then cut(CALL_JOBS + 1) end
local extras, records, bytes = call('HMGET', key_extras, unpack(ids)), {}, 0
for i = 1, #ids do
  if bytes >= CALL_BYTES then
    cut(i)
    break
  end
  local record = left > 1 and call('HGET', key_jobs, ids[i])
  bytes = bytes + (record and #record or 0) + (extras[i] and #extras[i] or 0)
  if record and unp('>I2', record, 2) < left then records[ids[i]] = sub(record, 1, 1) .. pack('>I2', left) .. sub(record, 4) end
end

local score = kind == '0' and now or kind == '2' and now + tonumber(ms) or tonumber(ms)
local entries, more = {}, {}
for i, id in ipairs(ids) do
  entries[2 * i - 1], entries[2 * i] = score, score <= now and id .. DECORATED or id
  local old = extras[i]
  more[2 * i - 1], more[2 * i] = id, extra(left, now, old and unp('>I2', old, 9) >= SUSPECT and SUSPECT or 0, old and sub(old, 11) or '')
end
for id, record in pairs(records) do call('HSET', key_jobs, id, record) end
call_in_chunks('ZREM', failed, ids)
call_in_chunks('HSET', key_extras, more)
if admit(at, score <= now and entries or {}, score > now and entries or {}) then notify() end
if named == 0 and call('ZCARD', failed) > 0 then more_left = 1 end
return finish(pack('>I4B', #ids, more_left))
