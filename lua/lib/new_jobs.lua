-- Lays out new jobs with the ids low + 1 ... low + count (as next_ids gives them, of one ms), as they are stored: fields of jobs; for each priority
-- the scores and members of ready and of scheduled (nil: no job is scheduled); first_due: when the first scheduled one is due.
-- A record begins with its format, the attempts allowed (2) and the priority.
-- reads: count high largest priorities low NEVER now DECORATED records0 RUN_BYTES spec
-- sets:  argv arrival char done fields first first_due format HEADER_BYTES largest prefix ready scheduled
local HEADER_BYTES = 4
local fields, ready, scheduled, first_due = {}, {}, nil, NEVER
local done, argv, char, format, first = 0, ARGV, string.char, string.format, records0 + 1
local arrival, prefix = format('%d', high * 8192 + floor((low + 1) / 524288)), sub(pack('>I4I4', high, low + 1), 1, 7)
for at = 1, #spec, RUN_BYTES do
  local priority, kind, ms, n = unp('>BBI6I2', spec, at)
  if priority < 1 or priority > priorities then return redis.error_reply('BAD_REQUEST no priority ' .. priority) end
  if n < 1 or done + n > count then return redis.error_reply('BAD_REQUEST the spec does not fit ' .. count .. ' records') end
  if kind == 2 then ms = now + ms end
  local sets, score, suffix = ready, arrival, nil
  if kind > 0 then
    score = format('%d', ms)
    if ms > now then
      scheduled = scheduled or {}
      sets, first_due = scheduled, math.min(first_due, ms)
    else
      suffix = DECORATED
    end
  end
  local entries = sets[priority] or {}
  local last = #entries
  sets[priority] = entries
  local field, final = 2 * done, (low + done) % 256
  for i = first + done, first + done + n - 1 do
    local record = argv[i]
    local size = #record
    if size < HEADER_BYTES then return redis.error_reply('BAD_REQUEST record ' .. i - first .. ' is cut off') end
    if size > largest then largest = size end
    final = final + 1
    if final == 256 then final, prefix = 0, sub(pack('>I4I4', high, low + i - first + 1), 1, 7) end
    local id = prefix .. char(final)
    field, last = field + 2, last + 2
    fields[field - 1], fields[field] = id, record
    entries[last - 1], entries[last] = score, suffix and id .. suffix or id
  end
  done = done + n
end
if done ~= count then return redis.error_reply('BAD_REQUEST the spec does not fit ' .. count .. ' records') end
