-- Records of ids within a byte budget. Chunks grow fourfold, so that large bodies are noticed before many are read.
local bytes_read = 0

-- Returns lists of records (in the ids' order), how many there are, and the position of an id that has none.
local function fetch(ids, budget)
  local lists, count, chunk = {}, 0, 16
  while count < #ids do
    local last = math.min(count + chunk, #ids)
    local records = call('HMGET', key_j, unpack(ids, count + 1, last))
    lists[#lists + 1] = records
    for i = 1, last - count do
      if not records[i] then return lists, count, count + i end
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
