-- configure: replaces a queue's settings, if the caller knows the present ones.
-- KIND   write
-- NEEDS  base head clock mint ring
-- KEYS   m w
-- ARGV   lane sequence version settings carried
-- REPLY  configuration
-- carried: '' (draw a new version from h), or the version another shard drew: taken over if it is greater than the one here.

if replay then return { sequence, replay_h, replay } end
local _, new_levels = byte(settings, 5, 6)
if new_levels < levels then
  return redis.error_reply('BAD_REQUEST levels can only grow: expected at least ' .. levels .. ', got ' .. new_levels)
end

local function number(packed)
  local high, low = unp('>I4I4', packed)
  return high * 4294967296 + low
end

local drawn = carried
if carried == '' then
  local high, low = mint(1)
  drawn = pack('>I4I4', high, low + 1)
  if number(drawn) <= number(sub(config, 1, 8)) then
    -- a version carried from a shard whose clock is ahead: go on from it
    high, low = unp('>I4I4', config)
    drawn = low == 4294967295 and pack('>I4I4', high + 1, 0) or pack('>I4I4', high, low + 1)
  end
elseif number(carried) <= number(sub(config, 1, 8)) then
  return finish(config)
end
config = drawn .. sub(config, 9, 12) .. settings
call('HSET', key_m, 'c', config)
local was_paused = paused
paused = byte(settings, 5) % 2 == 1
if was_paused and not paused then ring() end
return finish(config)
