-- Moves due jobs of a priority from scheduled to ready, n at most, as no more are taken. Returns how many stay due.
-- reads: earliest now DECORATED call_in_chunks
-- sets:  earliest move_due
move_due = function(priority, n)
  local key = KEYS[scheduled0 + priority]
  local due = n > 0 and call('ZRANGE', key, '-inf', now, 'BYSCORE', 'LIMIT', 0, n, 'WITHSCORES') or {}
  if due[1] then
    for i = 1, #due, 2 do due[i], due[i + 1] = due[i + 1], due[i] .. DECORATED end
    call_in_chunks('ZADD', KEYS[ready0 + priority], due)
    call('ZREMRANGEBYRANK', key, 0, #due / 2 - 1)
  end
  local head = call('ZRANGE', key, 0, 0, 'WITHSCORES')
  if not head[1] then return 0 end
  earliest = math.min(earliest, tonumber(head[2]))
  return tonumber(head[2]) <= now and call('ZCOUNT', key, '-inf', now) or 0
end
