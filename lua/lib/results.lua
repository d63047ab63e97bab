-- result_expiries: id -> when its result is over (ms). results: id -> the result (u8 codec, bytes).
-- Removes results that are over, `most` at a time. Returns how many.
-- reads: now call_in_chunks
-- sets:  drop_results
local function drop_results(most)
  local over = call('ZRANGE', key_result_expiries, '-inf', now, 'BYSCORE', 'LIMIT', 0, most)
  if over[1] then
    call_in_chunks('ZREM', key_result_expiries, over)
    call_in_chunks('HDEL', key_results, over)
  end
  return #over
end
