-- configure: replaces a queue's settings, if the caller knows the present ones.
-- KIND   write
-- NEEDS  base lane check_queue clock new_ids notify before version
-- KEYS   meta waiters
-- ARGV   lane sequence version settings carried
-- REPLY  configuration
-- carried: '' (draw a new version from h), or version and epoch (12 bytes) of another shard: taken over if newer and of the same epoch.
-- Settings that were added later, and that this caller does not know, stay as they are.

if replay then return stored end
local refusal = refuse_settings(settings)
if refusal then return refusal end
local new_flags, new_priorities = byte(settings, SETTINGS_FLAGS, SETTINGS_PRIORITIES)
if new_priorities < priorities then
  return redis.error_reply('BAD_REQUEST priorities can only grow: expected at least ' .. priorities .. ', got ' .. new_priorities)
end
if carried ~= '' and (sub(carried, CARRIED_EPOCH) ~= sub(config, CONFIG_EPOCH, CONFIG_EPOCH_END) or not newer(carried)) then return finish(config) end
local drawn = carried ~= '' and sub(carried, 1, CARRIED_VERSION_END) or draw_version()
local sent = select(2, skip_entries(settings, SETTINGS_TAIL, MAX_ENTRIES))
local unknown = sub(config, (skip_entries(config, CONFIG_TAIL, sent)))
config = config_of(drawn, sub(config, CONFIG_GENERATION, CONFIG_GENERATION_END), settings .. unknown, sub(config, CONFIG_EPOCH, CONFIG_EPOCH_END))
call('HSET', key_meta, 'config', config)
local was_paused = paused
paused = new_flags % 2 == 1
if was_paused and not paused then notify() end
return finish(config)
