-- create: makes a queue on this shard, or answers with the configuration it has.
-- KIND   admit
-- NEEDS  base lane clock before remnant greatest
-- KEYS   meta permit m
-- ARGV   lane sequence settings carried permit remnant
-- REPLY  created (1 byte: 0, 1), configuration
-- settings: the packed configuration without format, version, generation and epoch. carried: '' (draw a version from h), or version and epoch (12 bytes)
-- that the queue has on another shard: then it is made only where nothing newer is known, its deletion included.
-- permit: what the script of this name answered. remnant: what the registry has of the queue, read after that; '' = nothing.

if replay then return stored end
-- HERE check_format
local refusal = #remnant > 0 and #remnant < REMNANT_EPOCH_END and redis.error_reply('BAD_REQUEST remnant: expected 16 bytes or more, or none')
if refusal then return refusal end
local deleted = config and byte(config, CONFIG_FLAGS) >= 128
local exists = config and not deleted
if not exists then
  if call('HGET', key_permit, 'permit') ~= permit then
    return redis.error_reply('CONFIG_CHANGED another client creates or deletes the queue: get another permit')
  end
  -- HERE recall
end
-- HERE new_ids entries version
refusal = refuse_settings(settings)
if refusal then return refusal end
if exists then return finish('\0' .. config) end
if deleted and carried ~= '' and not newer(carried) then
  return redis.error_reply('QUEUE_NOT_FOUND deleted here after that configuration was made')
end
local version, epoch = sub(carried, 1, CARRIED_VERSION_END), sub(carried, CARRIED_EPOCH)
if carried == '' then version, epoch = draw_version(), pack('>I4', deleted and epoch_of(config) + 1 or 1) end
config = config_of(version, deleted and sub(config, CONFIG_GENERATION, CONFIG_GENERATION_END) or '\0\0\0\1', settings, epoch)
call('UNLINK', key_permit)
call('HSET', key_meta, 'config', config)
call('HDEL', key_meta, 'account')
if entry_of(config, ENTRY_RATE) ~= '' then
  -- HERE is_home account begin_account
end
return finish('\1' .. config)
