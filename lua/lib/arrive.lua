-- A record begins with its format, the attempts allowed (2) and the priority.
local HEADER_BYTES = 4
-- spec: jobs in a row that have the same u8 priority, u8 kind, u48 ms, and u16 how many.
local RUN_BYTES = 10

-- Puts new jobs in line under ids low + 1 ... low + count (as mint gives them). arrival: score of a job that may run at once.
-- Returns the id of the first job, or nil and an error before anything was written.
local function arrive(high, low, arrival)
  local count = #ARGV - records0
  arrival = string.format('%.0f', arrival)
  local fields, ready, scheduled = {}, {}, {}
  local argv, char, prefix = ARGV, string.char, sub(pack('>I4I4', high, low + 1), 1, 7)
  for i = 1, count do
    local record, last = argv[records0 + i], (low + i) % 256
    if #record < HEADER_BYTES then return nil, redis.error_reply('BAD_REQUEST record ' .. i - 1 .. ' is cut off') end
    if last == 0 then prefix = sub(pack('>I4I4', high, low + i), 1, 7) end
    fields[2 * i - 1], fields[2 * i] = prefix .. char(last), record
  end
  local done = 0
  for at = 1, #spec, RUN_BYTES do
    local level, kind, ms, n = unp('>BBI6I2', spec, at)
    if level < 1 or level > levels then return nil, redis.error_reply('BAD_REQUEST no level ' .. level) end
    if done + n > count then break end
    if kind == 2 then ms = now + ms end
    local lines = kind > 0 and ms > now and scheduled or ready
    local line, score = lines[level] or {}, kind == 0 and arrival or string.format('%.0f', ms)
    local last = #line
    for i = done + 1, done + n do
      line[last + 1], line[last + 2] = score, fields[2 * i - 1]
      last = last + 2
    end
    lines[level], done = line, done + n
  end
  if done ~= count then return nil, redis.error_reply('BAD_REQUEST the spec does not fit ' .. count .. ' records') end

  local more = {}
  for position, text in pairs(read_statuses(statuses)) do
    if position > count then return nil, redis.error_reply('BAD_REQUEST no job ' .. position - 1 .. ' for a status') end
    more[#more + 1] = fields[2 * position - 1]
    more[#more + 1] = extra(unp('>I2', fields[2 * position], 2), now, 0, append_status('', text))
  end

  send('HSET', key_j, fields)
  if more[1] then send('HSET', key_x, more) end
  marked = marked + #more / 2
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
  if count == 0 or #spec % RUN_BYTES ~= 0 then return redis.error_reply('BAD_REQUEST no records, or the spec is cut off') end
end
