-- Another configuration begins: the tokens that the old one gave stay, up to the new burst. The line of those that wait begins again. A shard that is
-- not the home keeps no account, so one that becomes the home begins with an empty one.
-- reads: burst config granted granted_before is_home line_ms old per_ms refill refilled_ms since_ms units
-- sets:  line_ms tokens units
local tokens = refill(old) and floor(units / per_ms) or 0
if is_home(config) and refill(config) then
  units, line_ms = math.min(tokens, burst) * per_ms, 0
  -- HERE store_account
else
  call('HDEL', key_meta, 'account')
end
