-- reset_lost: sets the count of ids that claims found without a record to 0.
-- KIND   write
-- NEEDS  base lane check_queue clock new_ids
-- KEYS   meta
-- ARGV   lane sequence version
-- REPLY  u32 how many there were

if replay then return stored end
local lost = tonumber(call('HGET', key_meta, 'lost') or '0')
call('HDEL', key_meta, 'lost')
return finish(pack('>I4', lost))
