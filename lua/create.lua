-- create: makes a queue on this shard, or tells the configuration it has.
-- KIND   admit
-- NEEDS  base clock
-- KEYS   m
-- ARGV   lane sequence settings carried
-- REPLY  created (1 byte: 0, 1), configuration
-- settings: the packed configuration without version and generation. carried: '' (draw a version from h), or the version the queue has on
-- another shard: then the queue is made only where nothing newer is known, its deletion included.

local meta = call('HMGET', key_m, 'c', 'h', lane)
local config, h, stored = meta[1], meta[2] or '\0\0\0\0\0\0\0\0', meta[3]
if stored and sub(stored, 1, 4) == sequence then return { sequence, sub(stored, 5, 12), sub(stored, 13) } end
local deleted = config and byte(config, 17) >= 128

local function number(packed)
  local high, low = unp('>I4I4', packed)
  return high * 4294967296 + low
end

local high, low = unp('>I4I4', h)
local h_ms = high * 8192 + floor(low / 524288)
if now > h_ms then
  high, low = floor(now / 8192), (now % 8192) * 524288
elseif low == 4294967295 then
  high, low = high + 1, 0
else
  low = low + 1
end
h = pack('>I4I4', high, low)

local reply
if config and not deleted then
  reply = '\0' .. config
elseif config and carried ~= '' and number(sub(config, 1, 8)) >= number(carried) then
  return redis.error_reply('QUEUE_NOT_FOUND deleted here after that configuration was made')
else
  local generation = config and sub(config, 9, 12) or '\0\0\0\1'
  config = (carried ~= '' and carried or h) .. generation .. settings
  call('HSET', key_m, 'c', config)
  reply = '\1' .. config
end
call('HSET', key_m, 'h', h, lane, sequence .. h .. reply)
return { sequence, h, reply }
