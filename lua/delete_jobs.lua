-- delete_jobs: removes jobs of a state and priority, the oldest first (running ones in no order), or those named.
-- KIND   write
-- NEEDS  base call_in_chunks lane check_queue clock decorated new_ids notify lease leave_lease
-- KEYS   meta waiters jobs extras leases lease_jobs batch_of ready* scheduled* withdrawn* running* failed* succeeded*
-- ARGV   lane sequence version state priority limit channel ids…
-- REPLY  u32 how many, u8 more of that state are left, u8 an id: whether it was removed
-- channel: where workers hear the ids of removed running jobs, joined; '': nowhere. A user that may not publish there removes them all the same.
-- A job that is withdrawn for a batch is pending. The batch goes on naming it.
-- state: 0 pending (due or not), 1 in progress, 2 succeeded, 3 failed, '' any (named ids only). limit: 1 to 1000; '0': only the ids.

if replay then return stored end
local at, most, named = tonumber(priority), tonumber(limit), #ARGV - ids0
if most > 1000 or named > 1000 then return redis.error_reply('TOO_MANY jobs: expected at most 1000, got ' .. math.max(most, named)) end
if at > priorities and most == 0 then return finish(pack('>I4B', 0, 0)) end
if at < 1 or at > priorities then return redis.error_reply('BAD_REQUEST no priority ' .. at) end

local SETS = { ['0'] = { ready0, scheduled0, withdrawn0 }, ['2'] = { succeeded0 }, ['3'] = { failed0 } }
SETS[''] = { ready0, scheduled0, withdrawn0, succeeded0, failed0 }
if state ~= '1' and not SETS[state] or state == '' and most > 0 then
  return redis.error_reply('BAD_REQUEST state: expected 0 to 3, or none and ids')
end
local removed = {}

local function pick(key, candidates)
  local found, scores = {}, call('ZMSCORE', key, unpack(candidates))
  for i, score in ipairs(scores) do
    if score then found[#found + 1] = candidates[i] end
  end
  return found
end

local function pick_running(ids)
  for i, value in ipairs(ids[1] and call('HMGET', KEYS[running0 + at], unpack(ids)) or {}) do
    if value then
      leave_lease(value, at, ids[i])
      removed[#removed + 1] = ids[i]
    end
  end
end

-- both: the two forms in which an id may stand in ready
local ids, both, seen = {}, {}, {}
for i = ids0 + 1, #ARGV do
  if not seen[ARGV[i]] then
    ids[#ids + 1] = ARGV[i]
    both[#both + 1], both[#both + 2] = ARGV[i], ARGV[i] .. DECORATED
  end
  seen[ARGV[i]] = true
end
local more, ran = 0, 0
if state == '1' or state == '' then
  local key = KEYS[running0 + at]
  if named == 0 and most > 0 then
    -- HKEYS of a large hash is not bounded work; a page of HSCAN is
    local page = call('HSCAN', key, '0', 'COUNT', most)
    while #page[2] == 0 and page[1] ~= '0' do page = call('HSCAN', key, page[1], 'COUNT', most) end
    for i = 1, math.min(#page[2], 2 * most), 2 do ids[#ids + 1] = page[2][i] end
  end
  pick_running(ids)
  if removed[1] then call_in_chunks('HDEL', key, removed) end
  ran = #removed
  if state == '1' and call('HLEN', key) > 0 then more = 1 end
end
for _, family in ipairs(SETS[state] or {}) do
  local key = KEYS[family + at]
  local found = named > 0 and pick(key, family == ready0 and both or ids) or most > #removed and call('ZRANGE', key, 0, most - #removed - 1) or {}
  if found[1] then call_in_chunks('ZREM', key, found) end
  if family == withdrawn0 then call_in_chunks('HDEL', key_batch_of, found) end
  for _, member in ipairs(found) do removed[#removed + 1] = sub(member, 1, 8) end
  if call('ZCARD', key) > 0 then more = 1 end
end
if removed[1] then
  call_in_chunks('HDEL', key_jobs, removed)
  call_in_chunks('HDEL', key_extras, removed)
end
settle_leases()
if ran > 0 and flags % 16 >= FLAG_MAX_RUNNING then
  -- HERE free_places
end
local was_there, found_flags = {}, {}
for _, id in ipairs(removed) do was_there[id] = true end
for i = 1, named do found_flags[i] = was_there[ARGV[ids0 + i]] and '\1' or '\0' end
local reply = finish(pack('>I4B', #removed, more) .. concat(found_flags))
if ran > 0 and channel ~= '' and redis.acl_check_cmd('PUBLISH', channel, '') then
  call('PUBLISH', channel, concat(removed, '', 1, ran))
end
return reply
