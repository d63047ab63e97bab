-- Puts new jobs in line under ids low + 1 ... low + count (as mint gives them). Returns the id of the first job, or nil and an error before
-- anything was written.
local function arrive(high, low)
  local fields, ready, scheduled = lines_of(high, low)
  if not fields then return nil, ready end

  local more, has_extra = {}, {}
  for position, text in pairs(read_statuses(statuses)) do
    local id = fields[2 * position - 1]
    if not id then return nil, redis.error_reply('BAD_REQUEST no job ' .. position - 1 .. ' for a status') end
    has_extra[id] = true
    more[#more + 1] = id
    more[#more + 1] = extra(unp('>I2', fields[2 * position], 2), now, 0, append_status('', text))
  end

  send('HSET', key_j, fields)
  if more[1] then send('HSET', key_x, more) end
  local wake = false
  for level = 1, levels do
    local line = ready[level] or {}
    for i = 2, more[1] and #line or 0, 2 do
      if has_extra[line[i]] then line[i] = line[i] .. ODD end
    end
    wake = admit(level, line, scheduled and scheduled[level] or {}) or wake
  end
  if wake then ring() end
  return fields[1]
end
