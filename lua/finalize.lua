-- finalize: removes the jobs of a batch that the archive has, and the batch.
-- KIND   write
-- NEEDS  base call_in_chunks lane check_queue clock new_ids batch_ids owned_ids
-- KEYS   meta jobs extras batch_of batches withdrawn*
-- ARGV   lane sequence version batch removed
-- REPLY  u8 what (0 there is no such batch, 1 it ended, 2 it did not end), then ids of jobs that were removed since and that the caller did not name
-- removed: ids joined that the caller knows to be removed. The batch ends only if there are no others.

if replay then return stored end
-- HERE check_batch
if #removed % 8 > 0 then return redis.error_reply('BAD_REQUEST removed: expected ids of 8 bytes') end
if #removed > 4000 then return redis.error_reply('TOO_MANY ids: expected at most 500, got ' .. #removed / 8) end
local entry = call('HGET', key_batches, batch)
if not entry then return finish('\0') end
local owned, missing = owned_of(ids_in(entry))
local named, unnamed = {}, {}
for first = 1, #removed, 8 do named[sub(removed, first, first + 7)] = true end
for _, id in ipairs(missing) do
  if not named[id] then unnamed[#unnamed + 1] = id end
end
if unnamed[1] then return finish('\2' .. concat(unnamed)) end

call_in_chunks('HDEL', key_jobs, owned)
call_in_chunks('HDEL', key_extras, owned)
call_in_chunks('HDEL', key_batch_of, owned)
call_in_chunks('ZREM', KEYS[withdrawn0 + byte(entry, BATCH_PRIORITY)], owned)
call('HDEL', key_batches, batch)
return finish('\1')
