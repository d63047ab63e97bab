-- forget_queue: removes what is left of a deleted queue, once the registry has it.
-- KIND   write
-- NEEDS  base remnant
-- KEYS   meta permit
-- ARGV   nonce remnant
-- REPLY  1 if it was removed, else 0
-- remnant: what the registry got. If the queue was created since, or deleted again, it is another one, and nothing is removed.
-- A permit ends here too: its client may have read the registry too early.

local meta = call('HMGET', key_meta, 'config', 'head')
local config = meta[1]
if not config or byte(config, CONFIG_FLAGS) < 128 or remnant_of(sub(meta[2], 1, 8), config) ~= remnant then return { nonce, 0 } end
call('UNLINK', key_meta, key_permit)
return { nonce, 1 }
