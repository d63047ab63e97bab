-- Stores h, the answer (payload) in the lane, and what changed of the head.
if earliest ~= known_due or waiting ~= (meta[4] == '1') then
  local due_ms = string.format('%d', earliest)
  call('HSET', key_m, 'h', h, lane, sequence .. h .. payload, 'd', due_ms, 'w', waiting and '1' or '0')
else
  call('HSET', key_m, 'h', h, lane, sequence .. h .. payload)
end
