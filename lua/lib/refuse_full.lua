-- Refuses new jobs while this shard holds refuse_above or more jobs of the queue. A call comes in whole, so its jobs may bring the queue above that.
-- reads: config
-- sets:  MAX_ENTRIES entry_of held most skip_entries
-- HERE entries
local most, held = unp('>I6', entry_of(config, ENTRY_REFUSE_ABOVE)), call('HLEN', key_jobs)
if held >= most then
  return redis.error_reply('QUEUE_FULL the queue holds ' .. held .. ' jobs on this shard, and refuses new ones from ' .. most ..
    ' (refuse_above): let workers catch up, remove jobs, or raise it')
end
