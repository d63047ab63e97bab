-- Parts the ids of a batch into those that are still withdrawn for it, and those that were removed since.
-- reads: batch
-- sets:  owned_of
local function owned_of(ids)
  local owned, missing = {}, {}
  for i, owner in ipairs(ids[1] and call('HMGET', key_batch_of, unpack(ids)) or {}) do
    local list = owner == batch and owned or missing
    list[#list + 1] = ids[i]
  end
  return owned, missing
end
