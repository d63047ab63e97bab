-- Ends one group of simple successes: removes their running values, records and leases.
-- reads: argv at base first groups i priority n refused runs values
-- sets:  at entries i leases refused seen twice
local twice, seen, leases, entries = call('HDEL', KEYS[running0 + priority], unpack(argv, first, first + n - 1)) < n, nil, nil, nil
call('HDEL', key_jobs, unpack(argv, first, first + n - 1))
i, at = 0, runs
while i < n do
  local token, run = unp('>c8I2', groups, at)
  local job_flags, ended, lease = byte(values[i + 1], 11), run, token
  if job_flags >= 8 then lease = string.char(priority) .. argv[first + i] .. token end
  local left = job_flags < 4 and tonumber(call('HGET', key_lease_jobs, token .. 'n') or '0') or 0
  -- an id that is named twice leaves its lease once; the second mention is refused
  if twice then
    seen, refused = seen or {}, refused or {}
    for k = i + 1, i + run do
      local id = argv[first + k - 1]
      if seen[id] then ended, refused[#refused + 1] = ended - 1, pack('>I2', base + k - 1) end
      seen[id] = true
    end
  end
  i, at = i + run, at + 10
  if left > ended then
    call('HINCRBY', key_lease_jobs, token .. 'n', -ended)
  elseif run == n then
    if job_flags < 8 then call('HDEL', key_lease_jobs, token, job_flags >= 4 and token or token .. 'n') end
    call('ZREM', key_leases, lease)
  else
    leases, entries = leases or {}, entries or {}
    leases[#leases + 1] = lease
    if job_flags < 8 then entries[#entries + 1], entries[#entries + 2] = token, token .. 'n' end
  end
end
if leases then
  if entries[1] then call('HDEL', key_lease_jobs, unpack(entries)) end
  call('ZREM', key_leases, unpack(leases))
end
