-- store_results: keeps for a while what running jobs returned, and notifies those that wait for it.
-- KIND   write
-- NEEDS  base call_in_chunks lane check_queue clock new_ids results
-- KEYS   meta result_expiries results running*
-- ARGV   lane sequence version channel items values…
-- REPLY  refused: u16 positions (from 0) of jobs that the caller does not hold
-- channel: the beginning of the channel of a job's result; its id in hex follows. items, 23 bytes a job: u8 priority, id (8), token (8), u48 ms to
-- keep it. values: one an item. A result that is there is replaced. Results that are over are removed meanwhile, so that this needs no monitor.

if replay then return stored end
local ITEM = 23
local count = #items / ITEM
if count > 1000 then return redis.error_reply('TOO_MANY results: expected at most 1000, got ' .. count) end
if count % 1 ~= 0 or count ~= #ARGV - values0 then return redis.error_reply('BAD_REQUEST the items do not fit the values') end

local refused, values, expiries, channels = {}, {}, {}, {}
for i = 1, count do
  local priority, id, token, ms = unp('>Bc8c8I6', items, ITEM * (i - 1) + 1)
  if priority < 1 then return redis.error_reply('BAD_REQUEST no priority ' .. priority) end
  local running = priority <= priorities and call('HGET', KEYS[running0 + priority], id)
  if running and sub(running, 1, 8) == token then
    values[#values + 1], values[#values + 2] = id, ARGV[values0 + i]
    expiries[#expiries + 1], expiries[#expiries + 2] = string.format('%d', now + ms), id
    channels[#channels + 1] = channel .. string.format('%08x%08x', unp('>I4I4', id))
  else
    refused[#refused + 1] = pack('>I2', i - 1)
  end
end

drop_results(100 + #channels)
if values[1] then
  call_in_chunks('HSET', key_results, values)
  call_in_chunks('ZADD', key_result_expiries, expiries)
end
local reply = finish(concat(refused))
-- a user that may not publish stores results all the same: waits look by themselves, too
if channels[1] and redis.acl_check_cmd('PUBLISH', channels[1], '') then
  for _, one in ipairs(channels) do call('PUBLISH', one, '') end
end
return reply
