-- lookup: what is known of jobs by id.
-- KIND   read
-- NEEDS  base read ready lease created info
-- KEYS   meta jobs extras lease_jobs ready* scheduled* running* failed* succeeded*
-- ARGV   nonce version with_bodies budget levels_of ids…
-- REPLY  one element an id, in order: job info, or '' if there is no such job; fewer than asked when the budget is used up
-- levels_of: u8 an id. budget: bytes of records; one job is always given.

local count, bodies = #ARGV - ids0, with_bodies == '1'
if count > 1000 then return redis.error_reply('TOO_MANY jobs: expected at most 1000, got ' .. count) end
if count ~= #levels_of then return redis.error_reply('BAD_REQUEST levels do not fit the ids') end

local by_level = {}
for i = 1, count do
  local level = byte(levels_of, i)
  if level >= 1 and level <= levels then
    by_level[level] = by_level[level] or { ids = {}, odd = {}, at = {} }
    local group = by_level[level]
    group.ids[#group.ids + 1], group.odd[#group.odd + 1], group.at[#group.at + 1] = ARGV[ids0 + i], ARGV[ids0 + i] .. ODD, i
  end
end

-- state and place of each id that is there
local states, places, level_at = {}, {}, {}
for level, group in pairs(by_level) do
  local function look(state, found)
    for i, place in ipairs(found) do
      if place then states[group.at[i]], places[group.at[i]], level_at[group.at[i]] = state, place, level end
    end
  end
  look(FAILED, call('ZMSCORE', KEYS[failed0 + level], unpack(group.ids)))
  look(SUCCEEDED, call('ZMSCORE', KEYS[succeeded0 + level], unpack(group.ids)))
  look(PENDING, call('ZMSCORE', KEYS[scheduled0 + level], unpack(group.ids)))
  look(PENDING, call('ZMSCORE', KEYS[ready0 + level], unpack(group.ids)))
  look(PENDING, call('ZMSCORE', KEYS[ready0 + level], unpack(group.odd)))
  look(RUNNING, call('HMGET', KEYS[running0 + level], unpack(group.ids)))
end

local reply, bytes = { nonce, h }, 0
for i = 1, count do
  local id = ARGV[ids0 + i]
  local record = states[i] and call('HGET', key_jobs, id)
  if record then
    bytes = bytes + (bodies and #record or 0)
    if i > 1 and bytes > tonumber(budget) then break end
    reply[i + 2] = info(states[i], level_at[i], id, record, call('HGET', key_extras, id), places[i], bodies)
  else
    reply[i + 2] = ''
  end
end
return reply
