-- leave_quarantine: one step of a job's way to another queue. The step there comes before this one.
-- KIND   write
-- NEEDS  base lane check_queue clock new_ids
-- KEYS   meta jobs extras quarantined failed*
-- ARGV   lane sequence version queue item
-- REPLY  the reservation that the job has then (8, zero: none), and of which queue it is
-- item: u8 priority, id (8), u8 what, reservation (8).
-- what: 0: it stays here; 1: it gets this reservation of that queue if it has none; 2: it was moved and is removed here; 3: this reservation of that queue
-- is withdrawn.

if replay then return stored end
if #item ~= 18 then return redis.error_reply('BAD_REQUEST item: expected 18 bytes, got ' .. #item) end
local priority, id, what, reservation = unp('>Bc8Bc8', item)
if priority < 1 or priority > priorities then return redis.error_reply('BAD_REQUEST no priority ' .. priority) end

local member = string.char(priority) .. id
local known = call('HGET', key_quarantined, member)
if what == 1 and known == '' then
  known = reservation .. queue
  call('HSET', key_quarantined, member, known)
elseif what == 3 and known == reservation .. queue then
  known = ''
  call('HSET', key_quarantined, member, known)
elseif (what == 0 or what == 2) and known then
  call('HDEL', key_quarantined, member)
  if what == 2 and call('ZREM', KEYS[failed0 + priority], id) == 1 then
    call('HDEL', key_jobs, id)
    call('HDEL', key_extras, id)
  end
end
return finish(known and known ~= '' and known or '\0\0\0\0\0\0\0\0')
