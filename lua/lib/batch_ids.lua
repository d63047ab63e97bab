-- A batch of the archive, as `batches` has it: u48 ms of the withdrawal, u8 priority, ids.
-- sets:  BATCH_PRIORITY ids_in
local BATCH_PRIORITY = 7
local function ids_in(entry)
  local ids = {}
  for i = 1, (#entry - BATCH_PRIORITY) / 8 do ids[i] = sub(entry, BATCH_PRIORITY + 8 * i - 7, BATCH_PRIORITY + 8 * i) end
  return ids
end
