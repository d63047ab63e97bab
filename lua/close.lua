-- close: ends restores of the archive. A copy of such a restore that comes later changes nothing.
-- KIND   write
-- NEEDS  base call_in_chunks lane check_queue clock new_ids before open_restores
-- KEYS   meta restores
-- ARGV   lane sequence version epoch restore known
-- REPLY  nothing
-- restore: a number, 8 bytes; all up to this one are closed.
-- known: the version that `restore` answered before the caller looked this number up, or ''. Where nothing is closed yet, another one changes nothing: the
-- server lost its data since, and a later restore may have ended.

if replay then return stored end
-- HERE check_epoch check_restore
local closed, ended = call('HGET', key_restores, 'closed'), {}
for number in pairs(open_restores()) do
  if not before(restore, number) then ended[#ended + 1] = number end
end
call_in_chunks('HDEL', key_restores, ended)
local may_close = known == sub(config, CONFIG_VERSION, CONFIG_VERSION_END)
if closed then may_close = before(closed, restore) end
if may_close then call('HSET', key_restores, 'closed', restore) end
return finish('')
