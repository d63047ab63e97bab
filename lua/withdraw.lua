-- withdraw: pending jobs of one priority leave their line for a batch of the archive. Their records and extras stay.
-- KIND   write
-- NEEDS  base call_in_chunks lane check_queue clock new_ids sizes_of batch_ids
-- KEYS   meta jobs batch_of batches ready* scheduled* withdrawn*
-- ARGV   lane sequence version epoch batch priority line order first last limit budget
-- REPLY  u32 how many, u8 more of them are left
-- batch: 16 bytes; one that is there already is left as it is, and answered. line: ready or scheduled. order: which leave first, latest or earliest.
-- first, last: scores as ZRANGE takes them. limit: 1 to 500 jobs. budget: bytes of records; one job is always taken.
-- Ids without a record stay in their line. A call looks at LOOKED ids at most; more is 0 if it took nothing.

if replay then return stored end
local LOOKED = 1000
local at, most, most_bytes = tonumber(priority), tonumber(limit), tonumber(budget)
-- HERE check_epoch check_batch
if not at or at % 1 > 0 or at < 1 or at > priorities then return redis.error_reply('BAD_REQUEST no priority ' .. priority) end
if line ~= 'ready' and line ~= 'scheduled' then return redis.error_reply('BAD_REQUEST line: expected ready or scheduled, got ' .. line) end
if order ~= 'latest' and order ~= 'earliest' then return redis.error_reply('BAD_REQUEST order: expected latest or earliest, got ' .. order) end
if most and most > 500 then return redis.error_reply('TOO_MANY jobs: expected a limit of at most 500, got ' .. limit) end
if not most or most % 1 > 0 or most < 1 then return redis.error_reply('BAD_REQUEST limit: expected 1 to 500, got ' .. limit) end
if not most_bytes then return redis.error_reply('BAD_REQUEST budget: expected bytes, got ' .. budget) end
for _, bound in ipairs({ first, last }) do
  if not (string.match(bound, '^%(?%d+%.?%d*$') or bound == '-inf' or bound == '+inf') then
    return redis.error_reply('BAD_REQUEST first and last: expected scores, got ' .. bound)
  end
end

local key, known = KEYS[(line == 'ready' and ready0 or scheduled0) + at], call('HGET', key_batches, batch)
if known then return finish(pack('>I4B', #ids_in(known), call('ZCOUNT', key, first, last) > 0 and 1 or 0)) end

-- members and scores behind the first `offset` ones
local function look(offset, n)
  if order == 'latest' then return call('ZRANGE', key, last, first, 'BYSCORE', 'REV', 'LIMIT', offset, n, 'WITHSCORES') end
  return call('ZRANGE', key, first, last, 'BYSCORE', 'LIMIT', offset, n, 'WITHSCORES')
end

local ids, members, scored, owners = {}, {}, {}, {}
local looked, bytes, more, full = 0, 0, 0, true
while full and more == 0 and looked < LOOKED do
  -- one more than it may take, so that it knows whether more are left
  local wanted, found = most - #ids + 1, {}
  local page = look(looked, wanted)
  for i = 1, #page, 2 do found[#found + 1] = sub(page[i], 1, 8) end
  for i, size in ipairs(sizes_of(found)) do
    if size > 0 and more == 0 then
      local n = #ids
      if n == most or n > 0 and bytes + size > most_bytes then
        more = 1
      else
        bytes = bytes + size
        ids[n + 1], members[n + 1] = found[i], page[2 * i - 1]
        scored[2 * n + 1], scored[2 * n + 2] = page[2 * i], found[i]
        owners[2 * n + 1], owners[2 * n + 2] = found[i], batch
      end
    end
  end
  looked, full = looked + #found, #found == wanted
end
if not ids[1] then return finish(pack('>I4B', 0, 0)) end
if full then more = 1 end

call_in_chunks('ZREM', key, members)
call_in_chunks('ZADD', KEYS[withdrawn0 + at], scored)
-- A hash of few short values is stored compactly, and each access looks through all of it: twice the time of all calls for a batch. One longer value
-- ends that for as long as the hash is there.
call('HSET', key_batch_of, '', string.rep(' ', 65), unpack(owners))
call('HDEL', key_batch_of, '')
call('HSET', key_batches, batch, pack('>I6B', now, at) .. concat(ids))
return finish(pack('>I4B', #ids, more))
