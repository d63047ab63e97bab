-- lookup: what is known of jobs by id.
-- KIND   read
-- NEEDS  base check_read decorated lease created_ms suspect job_info
-- KEYS   meta jobs extras lease_jobs ready* scheduled* withdrawn* running* failed* succeeded*
-- ARGV   nonce version with_bodies budget priorities_of ids…
-- REPLY  one element an id, in order: job info, or '' if there is no such job; fewer than asked when the budget is used up
-- priorities_of: u8 an id. budget: bytes of records and statuses, which are read without bodies too; one job is always given.

local count, bodies = #ARGV - ids0, with_bodies == '1'
if count > 1000 then return redis.error_reply('TOO_MANY jobs: expected at most 1000, got ' .. count) end
if count ~= #priorities_of then return redis.error_reply('BAD_REQUEST priorities do not fit the ids') end

local by_priority = {}
for i = 1, count do
  local priority = byte(priorities_of, i)
  if priority >= 1 and priority <= priorities then
    by_priority[priority] = by_priority[priority] or { ids = {}, decorated = {}, at = {} }
    local group = by_priority[priority]
    group.ids[#group.ids + 1], group.decorated[#group.decorated + 1], group.at[#group.at + 1] = ARGV[ids0 + i], ARGV[ids0 + i] .. DECORATED, i
  end
end

-- state and value of each id that is there
local states, values, priority_at = {}, {}, {}
for priority, group in pairs(by_priority) do
  local function look(state, found)
    for i, value in ipairs(found) do
      if value then states[group.at[i]], values[group.at[i]], priority_at[group.at[i]] = state, value, priority end
    end
  end
  look(FAILED, call('ZMSCORE', KEYS[failed0 + priority], unpack(group.ids)))
  look(SUCCEEDED, call('ZMSCORE', KEYS[succeeded0 + priority], unpack(group.ids)))
  look(PENDING, call('ZMSCORE', KEYS[scheduled0 + priority], unpack(group.ids)))
  look(PENDING, call('ZMSCORE', KEYS[ready0 + priority], unpack(group.ids)))
  look(PENDING, call('ZMSCORE', KEYS[ready0 + priority], unpack(group.decorated)))
  if call('EXISTS', KEYS[withdrawn0 + priority]) == 1 then look(PENDING, call('ZMSCORE', KEYS[withdrawn0 + priority], unpack(group.ids))) end
  look(RUNNING, call('HMGET', KEYS[running0 + priority], unpack(group.ids)))
end

local reply, bytes, most = { nonce, h }, 0, tonumber(budget)
for i = 1, count do
  local id = ARGV[ids0 + i]
  local record = states[i] and call('HGET', key_jobs, id)
  if record then
    local more = call('HGET', key_extras, id)
    local size = #record + (more and #more or 0)
    if bytes > 0 and bytes + size > most then break end
    bytes = bytes + size
    reply[i + 2] = info(states[i], priority_at[i], id, record, more, values[i], bodies)
    if bytes >= most then break end
  else
    reply[i + 2] = ''
  end
end
return reply
