-- The account of a queue that was just made is empty, and counts from now on.
-- reads: config granted granted_before is_home line_ms refill refilled_ms since_ms units
if is_home(config) and refill(config) then
  -- HERE store_account
end
