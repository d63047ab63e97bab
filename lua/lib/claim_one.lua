-- A claim of one job while nothing is due: most often the first of some level is a bare one with a record. What is not so is left to the
-- general way; nothing was written then.
local at, id = 0, nil
repeat
  at = at + 1
  id = call('ZRANGE', KEYS[p0 + at], '0', '0')[1]
until id or at == levels
local record = id and #id == 8 and call('HGET', key_j, id)
if record then
  call('ZREMRANGEBYRANK', KEYS[p0 + at], '0', '0')
  call('HSET', KEYS[r0 + at], id, token .. sub(record, 2, 3) .. '\4')
  call('ZADD', key_e, string.format('%d', now + unp('>I4', config, 13)), token)
  local block = string.char(at) .. '\0\1' .. id
  call('HSET', key_E, token, '\0\11' .. block .. claim)
  local here, below = call('ZCARD', KEYS[p0 + at]), at < levels and call('EXISTS', unpack(KEYS, p0 + at + 1, p0 + levels)) > 0
  local left = pack('>I4', here)
  if at > 1 then left = string.rep('\0\0\0\0', at - 1) .. left end
  for level = at + 1, levels do left = left .. (below and pack('>I4', call('ZCARD', KEYS[p0 + level])) or '\0\0\0\0') end
  if waiting and (below or here > 0) then
    -- HERE ring
    ring()
  end
  local payload = token
  -- HERE store
  return { answer .. NO_DUE .. string.char(0, levels) .. left .. block .. '\0\0', record }
end
