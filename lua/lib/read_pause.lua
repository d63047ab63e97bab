-- The pause of this queue shard that ends by itself. A flag of the configuration says that there is one; it is no setting, so the version stays.
-- Field `pause` of meta: u48 ms of its beginning, u48 ms of its end, who asked for it. After the clock went back it begins again, as long as before.
-- reads: config now
-- sets:  config left_ms pause with_pause
local pause, left_ms = byte(config, CONFIG_FLAGS) % 32 >= FLAG_PAUSE and call('HGET', key_meta, 'pause'), 0
if pause then
  local begin_ms, end_ms = unp('>I6I6', pause)
  left_ms = begin_ms > now and end_ms - begin_ms or math.max(end_ms - now, 0)
  if begin_ms > now then call('HSET', key_meta, 'pause', pack('>I6I6', now, now + left_ms) .. sub(pause, 13)) end
end

local function with_pause(there)
  local old = byte(config, CONFIG_FLAGS)
  local rest = old % 32 >= FLAG_PAUSE and old - FLAG_PAUSE or old
  config = sub(config, CONFIG_FORMAT, CONFIG_FORMAT) .. string.char(there and rest + FLAG_PAUSE or rest) .. sub(config, CONFIG_PRIORITIES)
  return config
end
