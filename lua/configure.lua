-- configure: replaces a queue's settings, if the caller knows the present ones.
-- KIND   write
-- NEEDS  base lane check_queue clock new_ids notify before entries version is_home account limits_message
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
local old = config
config = config_of(drawn, sub(config, CONFIG_GENERATION, CONFIG_GENERATION_END), settings .. unknown, sub(config, CONFIG_EPOCH, CONFIG_EPOCH_END))
-- a pause that ends is no setting: it stays. So do the flags that came later than what the caller knows.
local kept = byte(old, CONFIG_FLAGS) % 32 >= FLAG_PAUSE and FLAG_PAUSE or 0
if sent < ENTRY_RATE then
  new_flags, kept = new_flags % FIRST_LIMIT_FLAG, floor(byte(old, CONFIG_FLAGS) / FIRST_LIMIT_FLAG) * FIRST_LIMIT_FLAG
elseif sent < ENTRY_REFUSE_ABOVE then
  new_flags, kept = new_flags % FLAG_REFUSE_ABOVE, kept + floor(byte(old, CONFIG_FLAGS) / FLAG_REFUSE_ABOVE) * FLAG_REFUSE_ABOVE
end
if kept > 0 then config = sub(config, CONFIG_FORMAT, CONFIG_FORMAT) .. string.char(new_flags + kept) .. sub(config, CONFIG_PRIORITIES) end
call('HSET', key_meta, 'config', config)
-- HERE settle
local was_paused = paused
paused = new_flags % 2 == 1
if was_paused and not paused or floor(flags / FLAG_MAX_RUNNING) % 2 == 1 then notify() end
send_limits('')
return finish(config)
