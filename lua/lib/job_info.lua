-- One job as a lookup gives it (docs/design.md, "Job info"). value: a score, or the value in running.
-- reads: SUSPECT claim_of created_ms
-- sets:  FAILED info PENDING RUNNING SUCCEEDED
local PENDING, RUNNING, SUCCEEDED, FAILED = 0, 1, 2, 3

local function info(state, priority, id, record, more, value, with_body)
  local allowed = unp('>I2', record, 2)
  local left, updated, crashes, status, claim, run_after = allowed, created_ms(id), 0, '', '', 0
  if more then
    left, updated, crashes = unp('>I2I6I2', more)
    crashes = crashes % SUSPECT
    status = sub(more, 11)
  end
  if state == RUNNING then
    claim, run_after = claim_of(value), created_ms(sub(value, 1, 8))
    left, updated = unp('>I2', value, 9), math.max(run_after, more and updated or 0)
  elseif state == PENDING then
    run_after = floor(tonumber(value))
  else
    updated = tonumber(value)
  end
  local body = with_body and sub(record, 5) or ''
  return pack('>BB', state, priority) .. id .. pack('>I2I2I6I6I2I2', allowed, left, run_after, updated, crashes, #status)
    .. status .. pack('>I2', #claim) .. claim .. (with_body and '\1' or '\0') .. body
end
