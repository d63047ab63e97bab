-- An ack of one job that succeeded, has a lease of its own, and of which nothing is kept. Most calls for one job are so. Anything else, or what is
-- not valid, is left to the code behind; nothing was written then.
-- reads: earliest groups h_high h_low ids0 lane largest priorities sequence waiting
-- sets:  h_high h_low id kind priority n run token value
local priority, kind, n, token, run = unp('>BBI2c8I2', groups)
local id = ARGV[ids0 + 1]
local value = kind == 0 and n == 1 and run == 1 and priority > 0 and priority <= priorities and call('HGET', KEYS[running0 + priority], id)
if value and byte(value, 11) == 12 and sub(value, 1, 8) == token then
  call('HDEL', KEYS[running0 + priority], id)
  call('HDEL', key_jobs, id)
  call('ZREM', key_leases, sub(groups, 1, 1) .. id .. token)
  if h_low == 4294967295 then h_high, h_low = h_high + 1, -1 end
  local h, payload = pack('>I4I4', h_high, h_low + 1), ''
  -- HERE store_answer
  return answer
end
