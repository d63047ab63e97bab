-- leave_quarantine: the steps of a job's way to another queue, after those in the other one.
-- KIND   write
-- NEEDS  base lane head clock mint
-- KEYS   m j x q f*
-- ARGV   lane sequence version items
-- REPLY  8 bytes an item: the ticket that the job has now, zero if it has none
-- items, 18 bytes a job: u8 level, id (8), u8 what (0 it stays here, 1 this ticket if it has none yet, 2 it was moved: it goes), ticket (8).

if replay then return { sequence, replay_h, replay } end
local ITEM, NONE = 18, '\0\0\0\0\0\0\0\0'
if #items % ITEM ~= 0 or #items > 1000 * ITEM then return redis.error_reply('BAD_REQUEST items: expected 18 bytes each, 1000 at most') end
for i = 1, #items, ITEM do
  local level = byte(items, i)
  if level < 1 or level > levels then return redis.error_reply('BAD_REQUEST no level ' .. level) end
end

local tickets = {}
for i = 1, #items, ITEM do
  local level, id, what, ticket = unp('>Bc8Bc8', items, i)
  local member = string.char(level) .. id
  local known = call('HGET', key_q, member)
  if what == 1 and known == '' then
    call('HSET', key_q, member, ticket)
    known = ticket
  elseif what ~= 1 and known then
    call('HDEL', key_q, member)
    if what == 2 and call('ZREM', KEYS[f0 + level], id) == 1 then
      call('HDEL', key_j, id)
      call('HDEL', key_x, id)
    end
  end
  tickets[#tickets + 1] = known and known ~= '' and known or NONE
end
return finish(concat(tickets))
