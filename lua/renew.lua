-- renew: gives leases their full length again; a slow job can be given a lease of its own.
-- KIND   write
-- NEEDS  base send lane head clock mint lease leave
-- KEYS   m e E r*
-- ARGV   lane sequence version tokens own lease
-- REPLY  refused: u16 positions (from 0; the own list counts on after the tokens) that are not held any more
-- tokens: 8 bytes each, whole leases. own: u8 level, id (8), token (8) each: jobs to be taken out of their claim's lease.
-- lease: ms the caller counts on: renewed by thirds of a longer lease, a shortened one would run out in between. '0': the queue's.

if replay then return stored end
if own ~= '' and #KEYS - r0 < levels then return redis.error_reply('CONFIG_CHANGED the queue has more levels now') end
local token_count, own_count = #tokens / 8, #own / 17
if token_count + own_count > 1000 then
  return redis.error_reply('TOO_MANY leases: expected at most 1000, got ' .. token_count + own_count)
end
if token_count % 1 ~= 0 or own_count % 1 ~= 0 then return redis.error_reply('BAD_REQUEST tokens or jobs are cut off') end
for i = 1, own_count do
  local level = byte(own, 17 * i - 16)
  if level < 1 then return redis.error_reply('BAD_REQUEST no level ' .. level) end
end

local expires = now + math.max(unp('>I4', config, 13), tonumber(lease or '0'))
local refused, renewed = {}, {}

local function renew(token, position)
  if call('HEXISTS', key_E, token) == 1 then
    renewed[#renewed + 1] = expires
    renewed[#renewed + 1] = token
  else
    refused[#refused + 1] = pack('>I2', position)
  end
end

-- A lease of one job, with the claim descriptor of the lease it leaves.
local function own_lease(level, id, running)
  local high, low = mint(1)
  local fresh, old = pack('>I4I4', high, low + 1), sub(running, 1, 8)
  local entry = call('HGET', key_E, old)
  leaves(running)
  call('HSET', key_E, fresh, pack('>I2BI2', 11, level, 1) .. id .. (entry and sub(entry, 3 + unp('>I2', entry)) or ''))
  call('HSET', KEYS[r0 + level], id, sub(running, 1, 10) .. string.char(byte(running, 11) % 2 + 6) .. fresh .. sub(running, 12))
  renewed[#renewed + 1] = expires
  renewed[#renewed + 1] = fresh
end

for i = 1, token_count do renew(sub(tokens, 8 * i - 7, 8 * i), i - 1) end
for i = 1, own_count do
  local level, id, token = unp('>Bc8c8', own, 17 * i - 16)
  local running = level <= levels and call('HGET', KEYS[r0 + level], id)
  if not running or sub(running, 1, 8) ~= token then
    refused[#refused + 1] = pack('>I2', token_count + i - 1)
  elseif floor(byte(running, 11) / 2) % 2 == 1 then
    renew(lease_of(running), token_count + i - 1)
  else
    own_lease(level, id, running)
  end
end
if renewed[1] then send('ZADD', key_e, renewed) end
settle_leases()
return finish(concat(refused))
