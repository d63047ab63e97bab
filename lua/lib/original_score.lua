-- The score and the member of ready that a running job had before it was claimed.
-- reads: created_ms DECORATED
-- sets:  original_score run_after_of next_score
-- '' if it is the id's own ms.
local function run_after_of(running)
  local job_flags = byte(running, 11)
  return job_flags >= 8 and '' or sub(running, floor(job_flags / 2) % 2 == 1 and 20 or 12)
end

local function original_score(id, running)
  local run_after = run_after_of(running)
  if run_after ~= '' then return string.format('%d', run_after), id .. DECORATED end
  return string.format('%d', created_ms(id)), byte(running, 11) % 2 == 1 and id .. DECORATED or id
end

-- The same, if its lease ended unconfirmed. Sixteenths of a ms count how often in a row, so the count needs no key. Nothing at the tenth time.
local function next_score(id, running)
  local run_after = run_after_of(running)
  local score = run_after == '' and created_ms(id) or tonumber(run_after)
  if score % 1 >= 9 / 16 then return nil end
  return string.format('%.4f', score + 1 / 16), id .. DECORATED
end
