-- Versions of a configuration are drawn from h, and always greater than the one there is: that one may come from a shard whose clock is ahead.
-- A queue has lives: odd while it is there, even when deleted; making and deleting it begin the next one. What is of a later life is newer,
-- whatever the clocks of shards say; within a life the version decides.
-- A configuration: version (8), generation (4), 22 bytes of settings, life (4), and of the settings what came later: nothing, or u16 crash limit
-- and the name of the quarantine queue.
-- reads: before config mint
-- sets:  config_of draw_version life_of NAME_BYTES newer refuse_settings SETTINGS_BYTES
local SETTINGS_BYTES, NAME_BYTES = 22, 255

local function config_of(drawn, generation, settings, life)
  return drawn .. generation .. sub(settings, 1, SETTINGS_BYTES) .. life .. sub(settings, SETTINGS_BYTES + 1)
end

local function life_of(packed) return (unp('>I4', packed, CONFIG_LIFE)) end

-- Whether what another shard has is newer than what is here. carried: version (8), life (4).
local function newer(carried)
  local here, there = life_of(config), unp('>I4', carried, CARRIED_LIFE)
  return there > here or there == here and before(sub(config, CONFIG_VERSION, CONFIG_VERSION_END), carried)
end

-- Returns the new version, and the h it was drawn from.
local function draw_version()
  local high, low = mint(1)
  local drawn = pack('>I4I4', high, low + 1)
  if not config or before(sub(config, CONFIG_VERSION, CONFIG_VERSION_END), drawn) then return drawn, drawn end
  high, low = unp('>I4I4', config)
  return low == 4294967295 and pack('>I4I4', high + 1, 0) or pack('>I4I4', high, low + 1), drawn
end

local function refuse_settings(settings)
  local later, settings_flags, settings_levels = #settings - SETTINGS_BYTES, byte(settings, SETTINGS_FLAGS, SETTINGS_LEVELS)
  if later ~= 0 and (later < 2 or later > 2 + NAME_BYTES) or settings_flags >= 128 or settings_levels < 1 or settings_levels > 100 then
    return redis.error_reply('BAD_REQUEST settings: expected 22 bytes or 24 and a name, not deleted, with 1 to 100 levels')
  end
end
