-- Whether this shard is the home of the queue's limits. The keys name the shard: pl:{queue/shard}:meta.
-- reads: entry_of
-- sets:  is_home
local function is_home(packed)
  return entry_of(packed, ENTRY_HOME) == string.match(key_meta, '/([^/}]+)}:meta$')
end
