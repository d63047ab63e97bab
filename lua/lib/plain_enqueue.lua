-- The common enqueue, before more functions are made (one costs 0.2 to 0.5 µs a call): no statuses, and nobody waits. Anything else falls
-- through to the rest of enqueue, and nothing was written.
if not replay and statuses == '' and not waiting then
  local fresh = count
  -- HERE fresh
  local fields, ready, scheduled, first_due = lines_of(high, low)
  if fields then
    call('HSET', key_j, unpack(fields))
    for level, line in pairs(ready) do call('ZADD', KEYS[p0 + level], unpack(line)) end
    if scheduled then
      for level, line in pairs(scheduled) do call('ZADD', KEYS[d0 + level], unpack(line)) end
      call('HSET', key_m, 'h', h, lane, sequence .. h .. fields[1], 'd', string.format('%d', math.min(first_due, earliest)))
    else
      call('HSET', key_m, 'h', h, lane, sequence .. h .. fields[1])
    end
    return { sequence, h, fields[1] }
  end
end
