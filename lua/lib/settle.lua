-- Another configuration begins: the tokens that the old one gave stay, up to the new burst. The part of a token stays if the new rate can express it, or a
-- slow rate would give nothing while settings change often. The line of those that wait begins again. A shard that is not the home keeps no account, so one
-- that becomes the home begins with an empty one.
-- reads: burst config granted granted_before is_home line_ms old per_ms refill refilled_ms since_ms units
-- sets:  line_ms old_ms old_units units
local old_units, old_ms = refill(old) and units or 0, per_ms
if is_home(config) and refill(config) then
  if old_ms ~= per_ms then old_units = floor(old_units / (old_ms or 1)) * per_ms end
  units, line_ms = math.min(old_units, burst * per_ms), 0
  -- HERE store_account
else
  call('HDEL', key_meta, 'account')
end
