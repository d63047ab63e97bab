-- The account of a queue's rate, in whole units: a token costs `per_ms` units, and each ms adds `token_count` units. So nothing is ever rounded.
-- It begins empty. No time counts twice if the clock steps back by GRANT_MS or less; after a longer jump it goes on from there. A jump forward gives
-- one burst at most.
-- Field `account` of meta: u48 ms of the last refill, u48 units, u48 ms of the last place in the line of those that wait, u48 ms since when `granted`
-- counts, u32 tokens granted since then, u32 tokens granted in the time of GRANT_MS before.
-- reads: entry_of now
-- sets:  burst granted granted_before line_ms per_ms refill refilled_ms since_ms token_count units
local refilled_ms, units, line_ms, since_ms, granted, granted_before = now, 0, 0, 0, 0, 0
local token_count, per_ms, burst

-- Reads the account, and refills it by the rate of this configuration. Returns whether the queue has a rate.
local function refill(packed)
  local rate = entry_of(packed, ENTRY_RATE)
  if rate == '' then return false end
  token_count, per_ms, burst = unp('>I4I4I4', rate)
  if burst == 0 then burst = math.max(1, floor(1000 * token_count / per_ms)) end
  local account = call('HGET', key_meta, 'account')
  if account then refilled_ms, units, line_ms, since_ms, granted, granted_before = unp('>I6I6I6I6I4I4', account) end
  if refilled_ms <= now then units = math.min(units + (now - refilled_ms) * token_count, burst * per_ms) end
  if refilled_ms <= now + GRANT_MS then refilled_ms = math.max(refilled_ms, now) else refilled_ms = now end
  if line_ms > now + LONGEST_REST_MS then line_ms = now end
  if since_ms > now or since_ms + GRANT_MS <= now then
    granted_before = since_ms <= now and since_ms + 2 * GRANT_MS > now and granted or 0
    since_ms, granted = now, 0
  end
  return true
end
