-- What an earlier claim of one job gave, or nothing if it was taken away since.
-- reads: levels stored
-- sets:  given_one
local function given_one(level, id, token)
  local running = level <= levels and call('HGET', KEYS[running0 + level], id)
  local record = running and sub(running, 1, 8) == token and call('HGET', key_jobs, id)
  return record and stored .. record
end
