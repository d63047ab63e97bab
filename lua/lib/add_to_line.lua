-- Adds a job that was withdrawn to the scores and members of the line in which it stood (as lib/admit takes them). score: as text.
-- reads: created_ms DECORATED now
-- sets:  add_to_line
local function add_to_line(ready, scheduled, id, score, has_extras)
  local ms = tonumber(score)
  local is_simple = not has_extras and ms == created_ms(id)
  local entries = (is_simple or ms <= now) and ready or scheduled
  entries[#entries + 1], entries[#entries + 2] = score, not is_simple and ms <= now and id .. DECORATED or id
end
