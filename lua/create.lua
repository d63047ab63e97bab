-- create: makes a queue on this shard, or answers with the configuration it has.
-- KIND   admit
-- NEEDS  base lane clock new_ids before version
-- KEYS   meta m
-- ARGV   lane sequence settings carried
-- REPLY  created (1 byte: 0, 1), configuration
-- settings: the packed configuration without format, version, generation and epoch. carried: '' (draw a version from h), or version and epoch (12 bytes)
-- that the queue has on another shard: then it is made only where nothing newer is known, its deletion included.

if replay then return stored end
-- HERE check_format
local refusal = refuse_settings(settings)
if refusal then return refusal end
local deleted = config and byte(config, CONFIG_FLAGS) >= 128
if config and not deleted then return finish('\0' .. config) end
if deleted and carried ~= '' and not newer(carried) then
  return redis.error_reply('QUEUE_NOT_FOUND deleted here after that configuration was made')
end
local version, epoch = sub(carried, 1, CARRIED_VERSION_END), sub(carried, CARRIED_EPOCH)
if carried == '' then version, epoch = draw_version(), pack('>I4', deleted and epoch_of(config) + 1 or 1) end
config = config_of(version, deleted and sub(config, CONFIG_GENERATION, CONFIG_GENERATION_END) or '\0\0\0\1', settings, epoch)
call('HSET', key_meta, 'config', config)
return finish('\1' .. config)
