-- Answers a repeated claim: what the first one gave, without what was taken away since (its lease ran out, jobs were deleted). The lane of a
-- claim that gave jobs keeps its token, or the name of its lease of one job. The lane of another keeps the answer.
-- reads: SUSPECT priorities limit NO_DUE NO_TOKEN replay stored
-- sets:  claimed_before given_one nothing_left
local nothing_left = NO_DUE .. string.char(0, priorities) .. string.rep('\0\0\0\0', priorities)
local function claimed_before(token)
  local lease = call('HGET', key_lease_jobs, token)
  local none = { sub(stored, 1, 12) .. NO_TOKEN .. nothing_left }
  if not lease then return none end
  local blocks, lists, at, last = {}, {}, 3, 2 + unp('>I2', lease)
  while at <= last do
    local priority, n = unp('>BI2', lease, at)
    local ids, kept, lefts, records = {}, {}, {}, {}
    for i = 1, n do ids[i] = sub(lease, at + 8 * i - 5, at + 8 * i + 2) end
    local running, found = call('HMGET', KEYS[running0 + priority], unpack(ids)), call('HMGET', key_jobs, unpack(ids))
    local extras = call('HMGET', key_extras, unpack(ids))
    for i = 1, n do
      if running[i] and sub(running[i], 1, 8) == token and found[i] then
        lefts[#kept + 1] = pack('>I2', extras[i] and byte(extras[i], 9) >= 128 and #kept + SUSPECT or #kept) .. sub(running[i], 9, 10)
        kept[#kept + 1], records[#kept + 1] = ids[i], found[i]
      end
    end
    if kept[1] then
      blocks[#blocks + 1] = pack('>BI2', priority, #kept) .. concat(kept) .. pack('>I2', #lefts) .. concat(lefts)
      lists[#lists + 1] = records
    end
    at = at + 3 + 8 * n
  end
  if not lists[1] then return none end
  return { stored .. nothing_left .. concat(blocks), unpack(lists) }
end

if #replay == 8 then return claimed_before(replay) end
if #replay ~= 17 then return limit and { stored } or stored end
-- HERE given_one
return given_one(unp('>Bc8c8', replay)) or limit and { sub(stored, 1, 12) .. NO_TOKEN .. nothing_left } or sub(stored, 1, 12)
