-- delete_queue: removes everything of a queue but its high-water mark: ids, tokens and configuration versions never come back.
-- KIND   write
-- NEEDS  base head clock mint
-- KEYS   m w j x e E R T p* d* r* f* s*
-- ARGV   lane sequence version
-- REPLY  nothing
-- The lanes go too: a resent request is then answered with QUEUE_NOT_FOUND, which its client reads as unknown.

local high, low = mint(1)
local drawn = pack('>I4I4', high, low + 1)
call('UNLINK', unpack(KEYS))
call('HSET', key_m, 'c', drawn .. sub(config, 9, 16) .. string.char(128) .. sub(config, 18), 'h', drawn)
return { sequence, drawn, '' }
