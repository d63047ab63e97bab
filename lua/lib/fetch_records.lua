-- Reads the records of ids within a byte budget. Chunks grow fourfold, so that large bodies are noticed before many are read.
-- reads: config
-- sets:  bytes_read fetch FIRST_CHUNK_BYTES part
local bytes_read = 0
-- The first chunk is no larger than this even if every body is as large as the queue allows.
local FIRST_CHUNK_BYTES = 64 * 1024 * 1024

-- Returns lists of records (in the ids' order) and how many there are, or nothing if an id has none.
local function fetch(ids, budget)
  local lists, count, bytes, wanted = {}, 0, bytes_read, #ids
  local chunk = math.max(1, math.min(64, floor(FIRST_CHUNK_BYTES / unp('>I4', config, CONFIG_BODY_LIMIT))))
  while count < wanted do
    local last = math.min(count + chunk, wanted)
    local records = call('HMGET', key_jobs, unpack(ids, count + 1, last))
    lists[#lists + 1] = records
    for i = 1, last - count do
      local record = records[i]
      if not record then return end
      bytes = bytes + #record
      if bytes > budget and bytes > #record then
        for k = last - count, i, -1 do records[k] = nil end
        bytes_read = bytes - #record
        return lists, count + i - 1
      end
    end
    count, chunk = last, chunk * 4
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
