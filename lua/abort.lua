-- abort: returns the jobs of a batch to their lines, as they stood there. The batch ends.
-- KIND   write
-- NEEDS  base call_in_chunks lane check_queue clock decorated created_ms new_ids notify admit batch_ids owned_ids add_to_line
-- KEYS   meta waiters extras batch_of batches ready* scheduled* withdrawn*
-- ARGV   lane sequence version batch
-- REPLY  u32 how many; 0 if there is no such batch

if replay then return stored end
-- HERE check_batch
local entry = call('HGET', key_batches, batch)
if not entry then return finish(pack('>I4', 0)) end
local at, owned = byte(entry, BATCH_PRIORITY), owned_of(ids_in(entry))
local ready, scheduled = {}, {}
local some_extras = call('EXISTS', key_extras) == 1
local scores = owned[1] and call('ZMSCORE', KEYS[withdrawn0 + at], unpack(owned)) or {}
for i, score in ipairs(scores) do
  if score then
    local id, ms = owned[i], tonumber(score)
    local is_simple = ms == created_ms(id) and not (some_extras and call('HEXISTS', key_extras, id) == 1)
    add_to_line(ready, scheduled, id, score, ms, is_simple)
  end
end

call_in_chunks('ZREM', KEYS[withdrawn0 + at], owned)
call_in_chunks('HDEL', key_batch_of, owned)
call('HDEL', key_batches, batch)
if admit(at, ready, scheduled) then notify() end
return finish(pack('>I4', #ready / 2 + #scheduled / 2))
