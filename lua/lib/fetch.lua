-- Records of ids within a byte budget. Chunks grow fourfold, so that large bodies are noticed before many are read.
local bytes_read = 0
-- The first chunk may not be more than this, were every body as large as the queue allows.
local FIRST_CHUNK_BYTES = 64 * 1024 * 1024

-- Returns lists of records (in the ids' order) and how many there are, or nothing if an id has none.
local function fetch(ids, budget)
  local lists, count, read_before = {}, 0, bytes_read
  local chunk = math.max(1, math.min(64, floor(FIRST_CHUNK_BYTES / unp('>I4', config, 31))))
  while count < #ids do
    local last = math.min(count + chunk, #ids)
    local records = call('HMGET', key_j, unpack(ids, count + 1, last))
    lists[#lists + 1] = records
    for i = 1, last - count do
      if not records[i] then
        bytes_read = read_before
        return
      end
      if bytes_read > 0 and bytes_read + #records[i] > budget then
        for k = last - count, i, -1 do records[k] = nil end
        return lists, count + i - 1
      end
      bytes_read = bytes_read + #records[i]
    end
    count, chunk = last, chunk * 4
  end
  return lists, count
end

-- Parts a line (id, score, id, score ...) into what can run, as a line, and ids without a record: evicted, or removed by hand.
local function part(line)
  local whole, bare = {}, {}
  for i = 1, #line, 2 do
    if call('HEXISTS', key_j, line[i]) == 1 then
      whole[#whole + 1], whole[#whole + 2] = line[i], line[i + 1]
    else
      bare[#bare + 1] = line[i]
    end
  end
  return whole, bare
end

local function ids_of(line)
  local ids = {}
  for i = 1, #line / 2 do ids[i] = line[2 * i - 1] end
  return ids
end
