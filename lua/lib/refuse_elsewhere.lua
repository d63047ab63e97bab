-- The jobs of a queue with max_running live on its home shard alone.
-- reads: config
-- sets:  MAX_ENTRIES entry_of is_home skip_entries
-- HERE entries is_home
if not is_home(config) then
  return redis.error_reply('NOT_AT_HOME the queue has max_running, so its jobs live on shard ' .. entry_of(config, ENTRY_HOME))
end
