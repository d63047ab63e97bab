-- What an earlier claim of one job gave; nothing if it was taken away since.
-- reads: priorities stored
-- sets:  given_one
local function given_one(priority, id, token)
  local running = priority <= priorities and call('HGET', KEYS[running0 + priority], id)
  local record = running and sub(running, 1, 8) == token and call('HGET', key_jobs, id)
  return record and stored .. record
end
