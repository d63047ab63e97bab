-- reset_lost: counts anew, from 0, the ids that claims find without a record.
-- KIND   write
-- NEEDS  base lane check_queue clock new_ids
-- KEYS   meta
-- ARGV   lane sequence version
-- REPLY  u32 how many there were

if replay then return stored end
local lost = tonumber(call('HGET', key_meta, 'lost') or '0')
call('HDEL', key_meta, 'lost')
return finish(pack('>I4', lost))
