-- Reads the records of ids within a byte budget. No record has more than `largest` bytes, so no chunk reads more than the budget, or one record.
-- A decorated job weighs as much as its extras may have, as they are read too.
-- reads: largest
-- sets:  bytes_read EXTRA_BYTES fetch part
local EXTRA_BYTES = 3010
local bytes_read = 0

-- Returns lists of records (in the ids' order) and how many there are, or nothing if an id has none.
-- decorated: position -> whether that job is decorated; nil: none is.
local function fetch(ids, budget, decorated)
  local lists, count, bytes, wanted, weight = {}, 0, bytes_read, #ids, largest + (decorated and EXTRA_BYTES or 0)
  while count < wanted do
    local last = math.min(count + math.max(1, floor((budget - bytes) / weight)), wanted)
    local records = call('HMGET', key_jobs, unpack(ids, count + 1, last))
    lists[#lists + 1] = records
    for i = 1, last - count do
      local record = records[i]
      if not record then return end
      local size = #record
      if decorated and decorated[count + i] then size = size + EXTRA_BYTES end
      bytes = bytes + size
      if bytes > budget and bytes > size then
        for k = last - count, i, -1 do records[k] = nil end
        bytes_read = bytes - size
        return lists, count + i - 1
      end
    end
    count = last
    if bytes >= budget then break end
  end
  bytes_read = bytes
  return lists, count
end

-- Parts ids (or members of ready) into those that can run and those whose record was evicted or removed by hand.
local function part(members)
  local whole, lost = {}, {}
  for _, member in ipairs(members) do
    local list = call('HEXISTS', key_jobs, sub(member, 1, 8)) == 1 and whole or lost
    list[#list + 1] = member
  end
  return whole, lost
end
