-- configure: replaces a queue's settings, if the caller knows the present ones.
-- KIND   write
-- NEEDS  base lane head clock mint ring order version
-- KEYS   m w
-- ARGV   lane sequence version settings carried
-- REPLY  configuration
-- carried: '' (draw a new version from h), or the version another shard drew: taken over if it is greater than the one here.

if replay then return { sequence, replay_h, replay } end
local refusal = refuse_settings(settings)
if refusal then return refusal end
local new_flags, new_levels = byte(settings, 5, 6)
if new_levels < levels then
  return redis.error_reply('BAD_REQUEST levels can only grow: expected at least ' .. levels .. ', got ' .. new_levels)
end
if carried ~= '' and not before(sub(config, 1, 8), carried) then return finish(config) end
local drawn = carried ~= '' and carried or draw_version()
config = drawn .. sub(config, 9, 12) .. settings
call('HSET', key_m, 'c', config)
local was_paused = paused
paused = new_flags % 2 == 1
if was_paused and not paused then ring() end
return finish(config)
