-- release: releases jobs that were not started. Attempts, crashes and score stay as they were.
-- KIND   write
-- NEEDS  base call_in_chunks lane check_queue clock decorated new_ids created_ms notify lease original_score leave_lease one_source holds
-- KEYS   meta waiters leases lease_jobs ready* running*
-- ARGV   lane sequence version source groups ids…
-- REPLY  refused: u16 positions (from 0) of ids that the caller does not hold

if replay then return stored end
local count = #ARGV - ids0
if count > 1000 then return redis.error_reply('TOO_MANY jobs: expected at most 1000, got ' .. count) end

-- taken: an id that is named twice is held once, or its lease would lose two jobs for one.
local plan, refused, taken, at, base = {}, {}, {}, 1, 0
while at <= #groups do
  local priority, n = unp('>BI2', groups, at)
  if priority < 1 or n < 1 or base + n > count then return redis.error_reply('BAD_REQUEST a group does not fit') end
  at = at + 3
  local values = priority <= priorities and call('HMGET', KEYS[running0 + priority], unpack(ARGV, ids0 + base + 1, ids0 + base + n)) or {}
  local part = { priority = priority, ids = {}, ready = {} }
  local i = 0
  while i < n do
    local token, run = unp('>c8I2', groups, at)
    at = at + 10
    for k = i + 1, math.min(i + run, n) do
      local id, value = ARGV[ids0 + base + k], values[k]
      if not taken[id] and holds(value, token) then
        taken[id] = true
        leave_lease(value, priority, id)
        part.ids[#part.ids + 1] = id
        part.ready[#part.ready + 1], part.ready[#part.ready + 2] = original_score(id, value)
      else
        refused[#refused + 1] = pack('>I2', base + k - 1)
      end
    end
    i = i + run
  end
  if i ~= n then return redis.error_reply('BAD_REQUEST the runs of a group do not fit') end
  base = base + n
  if part.ids[1] then plan[#plan + 1] = part end
end
if base ~= count then return redis.error_reply('BAD_REQUEST the groups name ' .. base .. ' jobs, got ' .. count) end

for _, part in ipairs(plan) do
  call_in_chunks('HDEL', KEYS[running0 + part.priority], part.ids)
  call_in_chunks('ZADD', KEYS[ready0 + part.priority], part.ready)
end
settle_leases()
if plan[1] then notify() end
return finish(concat(refused))
