-- The common enqueue, before a closure is made (one costs 0.2 to 0.5 µs a call): jobs of one priority, to run at once, without statuses,
-- and nobody waits. Anything else falls through to the rest of enqueue, and nothing was written.
if not replay and #spec == 10 and byte(spec, 2) == 0 and statuses == '' and not waiting and flags % 4 < 2 then
  local argv, level, count = ARGV, byte(spec), #ARGV - records0
  local high, low = unp('>I4I4', meta[2])
  local ms, last = high * 8192 + floor(low / 524288), low % 524288
  if now > ms then ms, last = now, -1 end
  if level >= 1 and level <= levels and count == unp('>I2', spec, 9) and count >= 1 and count <= 1000 and last + count < 524288 then
    local fields, line, char, whole = {}, {}, string.char, true
    local arrival = string.format('%.0f', ms)
    high, low = floor(ms / 8192), (ms % 8192) * 524288 + last
    local prefix = sub(pack('>I4I4', high, low + 1), 1, 7)
    for i = 1, count do
      local record, final = argv[records0 + i], (low + i) % 256
      if #record < 4 then whole = false end
      if final == 0 then prefix = sub(pack('>I4I4', high, low + i), 1, 7) end
      local id = prefix .. char(final)
      fields[2 * i - 1], fields[2 * i] = id, record
      line[2 * i - 1], line[2 * i] = arrival, id
    end
    if whole then
      call('HSET', key_j, unpack(fields))
      call('ZADD', KEYS[p0 + level], unpack(line))
      local h = pack('>I4I4', high, low + count)
      call('HSET', key_m, 'h', h, lane, sequence .. h .. fields[1])
      return { sequence, h, fields[1] }
    end
  end
end
