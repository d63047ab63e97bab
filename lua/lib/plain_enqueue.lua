-- The common enqueue, before more functions are made (one costs 0.2 to 0.5 µs a call): no statuses. Anything else falls through to the rest
-- of enqueue, and nothing was written.
if not replay and statuses == '' then
  local fresh = count
  -- HERE fresh
  local fields, ready, scheduled, first_due = lines_of(high, low)
  if fields then
    call('HSET', key_j, unpack(fields))
    local wake = false
    for level, line in pairs(ready) do
      call('ZADD', KEYS[p0 + level], unpack(line))
      wake = true
    end
    if scheduled then
      for level, line in pairs(scheduled) do call('ZADD', KEYS[d0 + level], unpack(line)) end
    end
    if first_due < earliest then earliest, wake = first_due, true end
    if wake and waiting then
      -- HERE ring
      ring()
    end
    local payload = fields[1]
    -- HERE store
    return { sequence, h, payload }
  end
end
