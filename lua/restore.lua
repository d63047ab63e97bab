-- restore: jobs of the archive are pending again, under their old ids and as they were.
-- KIND   admit
-- NEEDS  base call_in_chunks lane check_queue clock decorated notify admit before sizes_of add_to_line
-- KEYS   meta waiters jobs extras restores ready* scheduled*
-- ARGV   lane sequence version epoch restore jobs records…
-- REPLY  u8 what (0 refused, as it is closed; 1 done; 2 done before, as it is open; 3 refused, as nothing was ever closed), then ids that were left out,
--        as they have a record; of 3 the version
-- 3: the server may have lost its data, and so does not know which restores have ended. The caller closes those first, for this version.
-- restore: its number, 8 bytes. jobs, for each record: u8 priority, id (8), u48 run-after, u8 sixteenths of a ms, u16 length, extras ('' = none).
-- h rises to the highest of these ids: a server that lost its data began again with ids by its clock.

if replay then return stored end
local ITEM, LEAST_EXTRA, MOST_EXTRA, count = 18, 10, 3010, #ARGV - records0
-- HERE check_epoch check_restore
if count > 500 then return redis.error_reply('TOO_MANY jobs: expected at most 500, got ' .. count) end
local ids, ats, times, scores, extras, simple, seen = {}, {}, {}, {}, {}, {}, {}
local top_high, top_low, cursor = h_high, h_low, 1
for i = 1, count do
  local record = ARGV[records0 + i]
  if #jobs < cursor + ITEM - 1 then return redis.error_reply('BAD_REQUEST the jobs are cut off') end
  local at, high, low, ms, sixteenths, length = unp('>BI4I4I6BI2', jobs, cursor)
  local id = sub(jobs, cursor + 1, cursor + 8)
  if at < 1 or at > priorities then return redis.error_reply('BAD_REQUEST no priority ' .. at) end
  if high >= 2147483648 or seen[id] then return redis.error_reply('BAD_REQUEST job ' .. i - 1 .. ': expected an id of 63 bits, once') end
  if ms >= 17592186044416 or sixteenths > 15 then return redis.error_reply('BAD_REQUEST job ' .. i - 1 .. ': no such run-after') end
  if length > 0 and (length < LEAST_EXTRA or length > MOST_EXTRA) then
    return redis.error_reply('BAD_REQUEST job ' .. i - 1 .. ': no such extras')
  end
  if #record < 4 or byte(record) ~= 1 or byte(record, 4) ~= at then
    return redis.error_reply('BAD_REQUEST record ' .. i - 1 .. ' is cut off, or of another format or priority')
  end
  ids[i], ats[i], seen[id] = id, at, true
  times[i] = ms + sixteenths / 16
  scores[i] = string.format(sixteenths > 0 and '%.4f' or '%d', times[i])
  simple[i] = length == 0 and times[i] == high * 8192 + floor(low / 524288)
  extras[i] = length > 0 and sub(jobs, cursor + ITEM, cursor + ITEM + length - 1)
  if high > top_high or high == top_high and low > top_low then top_high, top_low = high, low end
  cursor = cursor + ITEM + length
end
if cursor ~= #jobs + 1 then return redis.error_reply('BAD_REQUEST the jobs do not fit ' .. count .. ' records') end

local closed, what = call('HGET', key_restores, 'closed'), 1
if not closed then
  what = 3
elseif not before(closed, restore) then
  what = 0
elseif call('HEXISTS', key_restores, restore) == 1 then
  what = 2
else
  h_high, h_low = top_high, top_low
end
-- HERE new_ids
if what == 3 then return finish('\3' .. sub(config, CONFIG_VERSION, CONFIG_VERSION_END)) end
if what ~= 1 then return finish(string.char(what)) end

local left_out, fields, more, lines = {}, {}, {}, {}
for i, size in ipairs(sizes_of(ids)) do
  local id, record, line = ids[i], ARGV[records0 + i], lines[ats[i]] or { {}, {} }
  if size > 0 then
    left_out[#left_out + 1] = id
  else
    lines[ats[i]] = line
    fields[#fields + 1], fields[#fields + 2] = id, record
    if extras[i] then more[#more + 1], more[#more + 2] = id, extras[i] end
    if #record > largest then largest = #record end
    add_to_line(line[1], line[2], id, scores[i], times[i], simple[i])
  end
end
if fields[1] then call_in_chunks('HSET', key_jobs, fields) end
if more[1] then call_in_chunks('HSET', key_extras, more) end
local wake = false
for priority, line in pairs(lines) do wake = admit(priority, line[1], line[2]) or wake end
call('HSET', key_restores, restore, pack('>I6', now))
if wake then notify() end
return finish('\1' .. concat(left_out))
