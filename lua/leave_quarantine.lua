-- leave_quarantine: one step of a job's way to another queue; what is done there comes before it.
-- KIND   write
-- NEEDS  base lane head clock mint
-- KEYS   meta jobs extras quarantined failed*
-- ARGV   lane sequence version queue item
-- REPLY  the ticket that the job has then (8, zero: none), and of which queue it is
-- item: u8 level, id (8), u8 what (0 it stays here, 1 this ticket of that queue if it has none yet, 2 it was moved: it goes), ticket (8).

if replay then return stored end
if #item ~= 18 then return redis.error_reply('BAD_REQUEST item: expected 18 bytes, got ' .. #item) end
local level, id, what, ticket = unp('>Bc8Bc8', item)
if level < 1 or level > levels then return redis.error_reply('BAD_REQUEST no level ' .. level) end

local member = string.char(level) .. id
local known = call('HGET', key_quarantined, member)
if what == 1 and known == '' then
  known = ticket .. queue
  call('HSET', key_quarantined, member, known)
elseif what ~= 1 and known then
  call('HDEL', key_quarantined, member)
  if what == 2 and call('ZREM', KEYS[failed0 + level], id) == 1 then
    call('HDEL', key_jobs, id)
    call('HDEL', key_extras, id)
  end
end
return finish(known and known ~= '' and known or '\0\0\0\0\0\0\0\0')
