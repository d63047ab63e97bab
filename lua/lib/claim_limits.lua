-- Limits of claims that this queue shard knows: a pause that ends, and max_running on the home shard. Leaves `want` at the places that are free.
-- limited: a number of model/limits.py, CLAIM_LIMITS. rest_ms: when the limit ends, if that is known.
-- reads: config flags limited now places priorities want
-- sets:  MAX_ENTRIES config entry_of is_home left_ms limited pause places rest_ms skip_entries want with_pause
-- HERE entries is_home read_pause
if left_ms > 0 then
  limited, rest_ms = 2, left_ms
elseif pause then
  call('HSET', key_meta, 'config', with_pause(false))
  call('HDEL', key_meta, 'pause')
end
if limited == 0 and flags % 16 >= FLAG_MAX_RUNNING then
  limited = 4
  if is_home(config) then
    places = unp('>I4', entry_of(config, ENTRY_MAX_RUNNING))
    for priority = 1, priorities do places = places - call('HLEN', KEYS[running0 + priority]) end
    want, limited = math.min(want, places), places < 1 and 3 or 0
  end
end
