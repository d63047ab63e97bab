-- settled: whether steps of the archive's protocol are still as they were done. It writes, so that a WAITAOF behind it waits for these steps.
-- KIND   write
-- NEEDS  base clock
-- KEYS   meta batches restores
-- ARGV   nonce open ended numbers
-- REPLY  u8 an item, 1 = as expected; u32 the epoch of the queue
-- open: batches (16 each) that are there. ended: batches that are not. numbers: restores (8 each) that are open.

local config = call('HGET', key_meta, 'config')
local format = config and byte(config, CONFIG_FORMAT) or DATA_FORMAT
if format ~= DATA_FORMAT then
  -- HERE other_format
end
if not config or byte(config, CONFIG_FLAGS) >= 128 then return redis.error_reply('QUEUE_NOT_FOUND no such queue') end
if #open % 16 > 0 or #ended % 16 > 0 or #numbers % 8 > 0 then return redis.error_reply('BAD_REQUEST the names are cut off') end
local count = (#open + #ended) / 16 + #numbers / 8
if count > 1000 then return redis.error_reply('TOO_MANY names: expected at most 1000, got ' .. count) end

local flags = {}
local function look(key, names, size, expected)
  for first = 1, #names, size do
    flags[#flags + 1] = string.char(call('HEXISTS', key, sub(names, first, first + size - 1)) == expected and 1 or 0)
  end
end

look(key_batches, open, 16, 1)
look(key_batches, ended, 16, 0)
look(key_restores, numbers, 8, 1)
call('HSET', key_meta, 'settled', pack('>I6', now) .. nonce)
return { nonce, concat(flags), sub(config, CONFIG_EPOCH, CONFIG_EPOCH_END) }
