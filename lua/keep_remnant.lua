-- keep_remnant: writes into the registry what a deleted queue leaves. A repeat changes nothing, and what the registry has never shrinks.
-- KIND   write
-- NEEDS  base before greatest
-- KEYS   remnants_one remnants_two remnants_three
-- ARGV   nonce field remnant
-- REPLY  what the registry has now
-- field: a hash of the queue's name. Hashes stay small, as only small ones are stored compactly: one that is full passes further fields on to its
-- sixteen children, of which the caller names one. Fields are never removed, so each stays where it is.

local FULL = 500
if #field ~= 8 or #remnant < REMNANT_EPOCH_END then return redis.error_reply('BAD_REQUEST expected a field of 8 bytes and a remnant') end
local nodes = { key_remnants_one, key_remnants_two, key_remnants_three }
for depth, node in ipairs(nodes) do
  local known = call('HGET', node, field)
  if known or depth == #nodes or call('HLEN', node) < FULL then
    if known then remnant = greatest(known, remnant) end
    call('HSET', node, field, remnant)
    return { nonce, remnant }
  end
end
