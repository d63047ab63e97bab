-- Refuses an ack whose groups, runs, delays or statuses do not fit its ids, or that came without keys it needs.
-- reads: count FAILED groups keep priorities statuses tombstones
-- sets:  at base bytes cut text
local at, base, bytes, cut = 1, 0, #groups, key_priorities ~= priorities
if cut and (keep > 0 or tombstones) then return redis.error_reply('BAD_REQUEST keys are missing') end
while at + 3 <= bytes do
  local priority, kind, n = unp('>BBI2', groups, at)
  if cut and kind == FAILED then return redis.error_reply('BAD_REQUEST keys are missing') end
  if priority < 1 or n < 1 or kind > FAILED or base + n > count then return redis.error_reply('BAD_REQUEST a group does not fit') end
  local i = 0
  at = at + 4
  while i < n and at + 9 <= bytes do
    local run = unp('>I2', groups, at + 8)
    i, at = run > 0 and i + run or n + 1, at + 10
  end
  if i ~= n then return redis.error_reply('BAD_REQUEST the runs of a group do not fit') end
  base, at = base + n, kind == FAILED and at + 6 * n or at
end
if at ~= bytes + 1 then return redis.error_reply('BAD_REQUEST the delays of a group do not fit') end
if base ~= count then return redis.error_reply('BAD_REQUEST the groups name ' .. base .. ' jobs, got ' .. count) end

local text = 1
while text <= #statuses do text = text + 3 <= #statuses and text + 4 + unp('>I2', statuses, text + 2) or #statuses + 2 end
if text ~= #statuses + 1 then return redis.error_reply('BAD_REQUEST the statuses are cut off') end
