-- The score and the member of ready that a running job had before it was claimed.
-- reads: created_ms DECORATED
-- sets:  original_score
local function original_score(id, running)
  local job_flags = byte(running, 11)
  local run_after = job_flags >= 8 and '' or sub(running, floor(job_flags / 2) % 2 == 1 and 20 or 12)
  if run_after ~= '' then return run_after, id .. DECORATED end
  return string.format('%d', created_ms(id)), job_flags % 2 == 1 and id .. DECORATED or id
end
