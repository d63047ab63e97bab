-- The common ack, before more functions are made (one costs 0.2 to 0.5 µs a call): groups of successes of which nothing is kept. All groups
-- are checked before anything is written; those that are not common are left in `plan` for the rest of ack.
if not replay and #ARGV == ids0 + 1 and #groups == 14 and more == '' and sub(config, 19, 22) == '\0\0\0\0' then
  -- HERE ack_one
end
local SUCCEEDED, FAILED = 0, 1
local options, source, statuses = 0, '', ''
if more ~= '' then
  local length = 0
  if #more > 2 then options, length = unp('>BI2', more) end
  if #more < 3 + length then return redis.error_reply('BAD_REQUEST options and source are cut off') end
  source, statuses = sub(more, 4, 3 + length), sub(more, 4 + length)
end
local argv, keep, tombstones, count = ARGV, 0, options == 1, #ARGV - ids0
-- Groups still to be ended: level, kind, n, base (ids before its own), runs and delays (where they begin). nil: none
local plan, refused

if not replay then
  keep = unp('>I4', config, 19)
  if count > 1000 then return redis.error_reply('TOO_MANY jobs: expected at most 1000, got ' .. count) end
  local at, base, bytes, cut = 1, 0, #groups, key_levels ~= levels
  if cut and (keep > 0 or tombstones) then return redis.error_reply('BAD_REQUEST keys are missing') end
  while at + 3 <= bytes do
    local level, kind, n = unp('>BBI2', groups, at)
    if cut and kind == FAILED then return redis.error_reply('BAD_REQUEST keys are missing') end
    if level < 1 or n < 1 or kind > FAILED or base + n > count then return redis.error_reply('BAD_REQUEST a group does not fit') end
    local i = 0
    at = at + 4
    while i < n and at + 9 <= bytes do
      local run = unp('>I2', groups, at + 8)
      i, at = run > 0 and i + run or n + 1, at + 10
    end
    if i ~= n then return redis.error_reply('BAD_REQUEST the runs of a group do not fit') end
    base, at = base + n, kind == FAILED and at + 6 * n or at
  end
  if at ~= bytes + 1 then return redis.error_reply('BAD_REQUEST the delays of a group do not fit') end
  if base ~= count then return redis.error_reply('BAD_REQUEST the groups name ' .. base .. ' jobs, got ' .. count) end

  local text = 1
  while text <= #statuses do text = text + 3 <= #statuses and text + 4 + unp('>I2', statuses, text + 2) or #statuses + 2 end
  if text ~= #statuses + 1 then return redis.error_reply('BAD_REQUEST the statuses are cut off') end

  at, base = 1, 0
  while base < count do
    local level, kind, n = unp('>BBI2', groups, at)
    local runs, first = at + 4, ids0 + base + 1
    -- of a level that the queue has not (it had, before it was deleted) nobody holds anything
    local plain = kind == SUCCEEDED and keep == 0 and not tombstones and level <= levels
    local values, i = plain and call('HMGET', KEYS[r0 + level], unpack(argv, first, first + n - 1)), 0
    at = runs
    while i < n do
      local token, run = unp('>c8I2', groups, at)
      local known = 0
      for k = i + 1, plain and i + run or 0 do
        local value = values[k]
        -- of one claim most values are the same
        if value ~= known then
          plain = value and sub(value, 1, 8) == token and byte(value, 11) % 4 == 0
          if not plain then break end
          known = value
        end
      end
      i, at = i + run, at + 10
    end
    if plain then
      local twice, seen, leases, entries = call('HDEL', KEYS[r0 + level], unpack(argv, first, first + n - 1)) < n, nil, nil, nil
      call('HDEL', key_j, unpack(argv, first, first + n - 1))
      i, at = 0, runs
      while i < n do
        local token, run = unp('>c8I2', groups, at)
        local marks, gone, lease = byte(values[i + 1], 11), run, token
        if marks >= 8 then lease = string.char(level) .. argv[first + i] .. token end
        local left = marks < 4 and tonumber(call('HGET', key_E, token .. 'n') or '0') or 0
        -- an id named twice leaves its lease once, and the second mention is refused
        if twice then
          seen, refused = seen or {}, refused or {}
          for k = i + 1, i + run do
            local id = argv[first + k - 1]
            if seen[id] then gone, refused[#refused + 1] = gone - 1, pack('>I2', base + k - 1) end
            seen[id] = true
          end
        end
        i, at = i + run, at + 10
        if left > gone then
          call('HINCRBY', key_E, token .. 'n', -gone)
        elseif run == n then
          if marks < 8 then call('HDEL', key_E, token, marks >= 4 and token or token .. 'n') end
          call('ZREM', key_e, lease)
        else
          leases, entries = leases or {}, entries or {}
          leases[#leases + 1] = lease
          if marks < 8 then entries[#entries + 1], entries[#entries + 2] = token, token .. 'n' end
        end
      end
      if leases then
        if entries[1] then call('HDEL', key_E, unpack(entries)) end
        call('ZREM', key_e, unpack(leases))
      end
    else
      plan = plan or {}
      plan[#plan + 1] = { level = level, kind = kind, n = n, base = base, runs = runs, delays = at }
      if kind == FAILED then at = at + 6 * n end
    end
    base = base + n
  end
  if not plan then
    if h_low == 4294967295 then h_high, h_low = h_high + 1, -1 end
    local h, payload = pack('>I4I4', h_high, h_low + 1), refused and concat(refused) or ''
    -- HERE store
    return answer
  end
  refused = refused or {}
end
