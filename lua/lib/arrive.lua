-- A record begins with its format, the attempts allowed (2) and the priority.
local HEADER_BYTES = 4

-- Puts new jobs in line under ids low + 1 ... low + count (as mint gives them). arrival: score of a job that may run at once.
-- Returns the id of the first job, or nil and an error before anything was written.
local function arrive(high, low, arrival)
  local count = #ARGV - records0
  arrival = string.format('%.0f', arrival)
  local fields, ready, scheduled = {}, {}, {}
  for i = 1, count do
    local record = ARGV[records0 + i]
    if #record < HEADER_BYTES then return nil, redis.error_reply('BAD_REQUEST record ' .. i - 1 .. ' is cut off') end
    fields[2 * i - 1], fields[2 * i] = pack('>I4I4', high, low + i), record
  end
  if #spec == 1 then
    local line = {}
    for i = 1, 2 * count, 2 do line[i], line[i + 1] = arrival, fields[i] end
    ready[byte(spec)] = line
  else
    for i = 1, count do
      local level, kind, ms = unp('>BBI6', spec, 8 * i - 7)
      if kind == 2 then ms = now + ms end
      local lines = kind > 0 and ms > now and scheduled or ready
      local line = lines[level]
      if not line then
        line = {}
        lines[level] = line
      end
      local n = #line
      line[n + 1], line[n + 2] = kind == 0 and arrival or string.format('%.0f', ms), fields[2 * i - 1]
    end
  end
  for _, lines in ipairs({ ready, scheduled }) do
    for level in pairs(lines) do
      if level < 1 or level > levels then return nil, redis.error_reply('BAD_REQUEST no level ' .. level) end
    end
  end

  local more = {}
  for position, text in pairs(read_statuses(statuses)) do
    if position > count then return nil, redis.error_reply('BAD_REQUEST no job ' .. position - 1 .. ' for a status') end
    more[#more + 1] = fields[2 * position - 1]
    more[#more + 1] = extra(unp('>I2', fields[2 * position], 2), now, 0, append_status('', text))
  end

  send('HSET', key_j, fields)
  if more[1] then send('HSET', key_x, more) end
  local wake = false
  for level = 1, levels do
    if ready[level] or scheduled[level] then
      wake = admit(level, ready[level], scheduled[level]) or wake
    end
  end
  if wake then ring() end
  return fields[1]
end

local function refuse_arrivals()
  local count = #ARGV - records0
  if floor(flags / 2) % 2 == 1 then return redis.error_reply('ENQUEUE_REFUSED the queue takes no new jobs') end
  if count > 1000 then return redis.error_reply('TOO_MANY jobs: expected at most 1000, got ' .. count) end
  if count == 0 or (#spec ~= 1 and #spec ~= 8 * count) then
    return redis.error_reply('BAD_REQUEST the spec does not fit ' .. count .. ' records')
  end
end
