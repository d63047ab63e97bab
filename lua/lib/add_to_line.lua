-- Adds a job that was withdrawn to the scores and members of the line in which it stood (as lib/admit takes them). score: as text, and as ms.
-- reads: DECORATED now
-- sets:  add_to_line
local function add_to_line(ready, scheduled, id, score, ms, is_simple)
  local entries = (is_simple or ms <= now) and ready or scheduled
  local n = #entries
  entries[n + 1], entries[n + 2] = score, not is_simple and ms <= now and id .. DECORATED or id
end
