-- A record begins with its format, the attempts allowed (2) and the priority.
local HEADER_BYTES = 4
-- spec: jobs in a row that have the same u8 priority, u8 kind, u48 ms, and u16 how many.
local RUN_BYTES = 10

local count = #ARGV - records0
if not replay then
  if floor(flags / 2) % 2 == 1 then return redis.error_reply('ENQUEUE_REFUSED the queue takes no new jobs') end
  if count > 1000 then return redis.error_reply('TOO_MANY jobs: expected at most 1000, got ' .. count) end
  if count == 0 or #spec % RUN_BYTES ~= 0 then return redis.error_reply('BAD_REQUEST no records, or the spec is cut off') end
end

-- What new jobs with ids low + 1 ... low + count (as mint gives them, of one ms) are written as: fields of j, a line (score, member, …) a
-- level of p, and of d (nil: no job is scheduled), and when the first scheduled one is due. Or nil and an error.
local function lines_of(high, low)
  local argv, char, format, first = ARGV, string.char, string.format, records0 + 1
  local arrival, prefix = format('%d', high * 8192 + floor((low + 1) / 524288)), sub(pack('>I4I4', high, low + 1), 1, 7)
  local fields, ready, scheduled, first_due, done = {}, {}, nil, NEVER, 0
  for at = 1, #spec, RUN_BYTES do
    local level, kind, ms, n = unp('>BBI6I2', spec, at)
    if level < 1 or level > levels then return nil, redis.error_reply('BAD_REQUEST no level ' .. level) end
    if n < 1 or done + n > count then return nil, redis.error_reply('BAD_REQUEST the spec does not fit ' .. count .. ' records') end
    if kind == 2 then ms = now + ms end
    local lines, score, mark = ready, arrival, nil
    if kind > 0 then
      score = format('%d', ms)
      if ms > now then
        scheduled = scheduled or {}
        lines, first_due = scheduled, math.min(first_due, ms)
      else
        mark = ODD
      end
    end
    local line = lines[level] or {}
    local last = #line
    lines[level] = line
    local field, final = 2 * done, (low + done) % 256
    for i = first + done, first + done + n - 1 do
      local record = argv[i]
      if #record < HEADER_BYTES then return nil, redis.error_reply('BAD_REQUEST record ' .. i - first .. ' is cut off') end
      final = final + 1
      if final == 256 then final, prefix = 0, sub(pack('>I4I4', high, low + i - first + 1), 1, 7) end
      local id = prefix .. char(final)
      field, last = field + 2, last + 2
      fields[field - 1], fields[field] = id, record
      line[last - 1], line[last] = score, mark and id .. mark or id
    end
    done = done + n
  end
  if done ~= count then return nil, redis.error_reply('BAD_REQUEST the spec does not fit ' .. count .. ' records') end
  return fields, ready, scheduled, first_due
end
