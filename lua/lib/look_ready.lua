-- Reads the first n jobs of a priority that are ready and have a record, within the byte budget. An id without a record cannot run: it is removed
-- and counted.
-- decorated: position -> member of a decorated job.
-- reads: fetch most n DECORATED part ready
-- sets:  full holes ids look decorated packed records taken
local look, taken, ids, packed, decorated, records = n, 0, nil, nil, nil, nil
while look > 0 and not records do
  ids, decorated = call('ZRANGE', ready, '0', look == 1 and '0' or look - 1), nil
  packed = concat(ids)
  if #packed > 8 * #ids then
    decorated = {}
    for i = 1, #ids do
      if #ids[i] > 8 then decorated[i], ids[i] = ids[i], sub(ids[i], 1, 8) end
    end
    packed = concat(ids)
  end
  records, taken = fetch(ids, most, decorated)
  if not records then
    -- ids without a record cannot run: they are removed and counted
    local whole, lost = part(ids)
    holes, look, taken = true, #whole, 0
    call('HDEL', key_extras, unpack(lost))
    call('HINCRBY', key_meta, 'lost', #lost)
    for i = 1, #lost do lost[#lost + 1] = lost[i] .. DECORATED end
    -- HERE call_in_chunks
    call_in_chunks('ZREM', ready, lost)
  end
end
if records then full = taken < #ids end
