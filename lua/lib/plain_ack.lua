-- The common ack, before a closure is made (one costs 0.2 to 0.5 µs a call): one level, successes of which nothing is kept. Anything else
-- falls through to the rest of ack, and nothing was written.
if not replay and byte(groups, 2) == 0 and options ~= '\1' and statuses == '' and unp('>I4', config, 19) == 0 then
  local argv, first, level, _, n = ARGV, ids0 + 1, unp('>BBI2', groups)
  local runs = (#groups - 4) / 10
  if n == #ARGV - ids0 and n >= 1 and n <= 1000 and level >= 1 and level <= levels and runs >= 1 and runs % 1 == 0 then
    local values = call('HMGET', KEYS[r0 + level], unpack(argv, first, ids0 + n))
    local i, plain = 0, true
    for run = 1, runs do
      local token, count = unp('>c8I2', groups, 10 * run - 5)
      if count < 1 then plain = false end
      for k = i + 1, i + count do
        local value = values[k]
        if not value or sub(value, 1, 8) ~= token or byte(value, 11) % 4 ~= 0 then
          plain = false
          break
        end
      end
      if not plain then break end
      i = i + count
    end
    if plain and i == n then
      local refused, seen = {}, {}
      if call('HDEL', KEYS[r0 + level], unpack(argv, first, ids0 + n)) < n then
        -- an id was named twice: it leaves its lease once, and the second mention is refused
        for k = 1, n do
          local id = argv[ids0 + k]
          if seen[id] then refused[#refused + 1] = pack('>I2', k - 1) else seen[id] = k end
        end
      end
      call('HDEL', key_j, unpack(argv, first, ids0 + n))
      i = 0
      for run = 1, runs do
        local token, count = unp('>c8I2', groups, 10 * run - 5)
        local sole = byte(values[i + 1], 11) >= 4
        if refused[1] then
          local named = count
          for k = i + 1, i + named do
            if seen[argv[ids0 + k]] ~= k then count = count - 1 end
          end
          i = i + named
        else
          i = i + count
        end
        local left = not sole and tonumber(call('HGET', key_E, token .. 'n') or '0') or 0
        if left > count then
          call('HINCRBY', key_E, token .. 'n', -count)
        elseif sole then
          call('HDEL', key_E, token)
          call('ZREM', key_e, token)
        else
          call('HDEL', key_E, token, token .. 'n')
          call('ZREM', key_e, token)
        end
      end
      local high, low = unp('>I4I4', meta[2])
      if low == 4294967295 then high, low = high + 1, -1 end
      local h, reply = pack('>I4I4', high, low + 1), concat(refused)
      call('HSET', key_m, 'h', h, lane, sequence .. h .. reply)
      return { sequence, h, reply }
    end
  end
end
