-- Versions of a configuration are drawn from h, and always greater than the present one, which may come from a shard whose clock is ahead.
-- Each creation and each deletion of a queue begins its next epoch; epochs are odd while the queue is there. A later epoch is newer, whatever the clocks
-- of shards say. Within an epoch the version decides.
-- reads: before config MAX_ENTRIES new_ids skip_entries
-- sets:  config_of draw_version epoch_of newer refuse_settings

local function config_of(drawn, generation, settings, epoch)
  return string.char(DATA_FORMAT) .. sub(settings, SETTINGS_FLAGS, SETTINGS_PRIORITIES) .. drawn .. generation .. epoch .. sub(settings, SETTINGS_LEASE_MS)
end

local function epoch_of(packed) return (unp('>I4', packed, CONFIG_EPOCH)) end

-- Whether another shard's configuration is newer than this one's. carried: version (8), epoch (4).
local function newer(carried)
  local here, there = epoch_of(config), unp('>I4', carried, CARRIED_EPOCH)
  return there > here or there == here and before(sub(config, CONFIG_VERSION, CONFIG_VERSION_END), carried)
end

-- Returns the new version, and the h it was drawn from.
local function draw_version()
  local high, low = new_ids(1)
  local drawn = pack('>I4I4', high, low + 1)
  if not config or before(sub(config, CONFIG_VERSION, CONFIG_VERSION_END), drawn) then return drawn, drawn end
  high, low = unp('>I4I4', config, CONFIG_VERSION)
  return low == 4294967295 and pack('>I4I4', high + 1, 0) or pack('>I4I4', high, low + 1), drawn
end

local function refuse_settings(settings)
  local last = #settings >= SETTINGS_TAIL - 1 and skip_entries(settings, SETTINGS_TAIL, MAX_ENTRIES)
  if last ~= #settings + 1 then return redis.error_reply('BAD_REQUEST settings: expected 22 bytes, then entries with a length each') end
  local settings_flags, settings_priorities = byte(settings, SETTINGS_FLAGS, SETTINGS_PRIORITIES)
  if settings_flags >= 128 or floor(settings_flags / FLAG_PAUSE) % 2 == 1 or settings_priorities < 1 or settings_priorities > 100 then
    return redis.error_reply('BAD_REQUEST settings: expected a queue that is not deleted, without a pause that ends, with 1 to 100 priorities')
  end
end
