-- Moves the first `taken` jobs of a priority from ready to running, under the claim's token. Adds them to its lease and to the reply.
-- reads: blocks held ids priority lists decorated packed simple_flags ready records single_flags taken token
-- sets:  block first i lefts entries running second
local entries, i, first, second, running = {}, 0, nil, nil, nil
for r = 1, #records do
  local list = records[r]
  for k = 1, #list do
    -- attempts allowed, a byte at a time: a string would have to be made
    local high_byte, low_byte = byte(list[k], 2, 3)
    if low_byte ~= second or high_byte ~= first then
      first, second, running = high_byte, low_byte, token .. sub(list[k], 2, 3) .. simple_flags
    end
    entries[2 * i + 1], entries[2 * i + 2] = ids[i + 1], running
    i = i + 1
  end
  lists[#lists + 1] = list
end
local lefts = {}
if decorated then
  -- attempts come from extras, the original run-after from the score
  local members, decorated_ids = {}, {}
  for i = 1, taken do
    if decorated[i] then members[#members + 1], decorated_ids[#decorated_ids + 1] = decorated[i], ids[i] end
  end
  local scores = members[1] and call('ZMSCORE', ready, unpack(members))
  local extras, k = members[1] and call('HMGET', key_extras, unpack(decorated_ids)), 0
  for i = 1, taken do
    if decorated[i] then
      k = k + 1
      local attempts = extras[k] and sub(extras[k], 1, 2)
      if attempts then lefts[#lefts + 1] = pack('>I2', i - 1) .. attempts end
      entries[2 * i] = token .. (attempts or sub(entries[2 * i], 9, 10)) .. string.char(attempts and single_flags + 1 or single_flags) .. scores[k]
    end
  end
end
call('ZREMRANGEBYRANK', ready, '0', taken == 1 and '0' or taken - 1)
call('HSET', KEYS[running0 + priority], unpack(entries))
local block = pack('>BI2', priority, taken) .. sub(packed, 1, 8 * taken)
held[#held + 1] = block
blocks[#blocks + 1] = block .. pack('>I2', #lefts) .. concat(lefts)
