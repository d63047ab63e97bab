-- forget_queue: removes what is left of a deleted queue, once the registry has it, and ends permits.
-- KIND   write
-- NEEDS  base remnant
-- KEYS   meta permit
-- ARGV   nonce remnant
-- REPLY  1 if another client has created the queue again, else 0
-- remnant: what the registry got, or '' if it got nothing. If the queue was deleted again since, something else is left, and it stays.
-- A permit ends here too: its client may have read the registry, or written the name into it, too early.

local meta = call('HMGET', key_meta, 'config', 'head')
local config = meta[1]
if config and byte(config, CONFIG_FLAGS) < 128 then return { nonce, 1 } end
call('UNLINK', key_permit)
if config and remnant_of(sub(meta[2], 1, 8), config) == remnant then call('UNLINK', key_meta) end
return { nonce, 0 }
