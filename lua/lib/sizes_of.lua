-- How many bytes the record of each id has; 0: the id has none. Small records are read, which costs less than a call for each length.
-- reads: largest
-- sets:  READ_BYTES sizes_of
local READ_BYTES = 262144
local function sizes_of(ids)
  local sizes = {}
  if ids[1] and #ids * largest <= READ_BYTES then
    for i, record in ipairs(call('HMGET', key_jobs, unpack(ids))) do sizes[i] = record and #record or 0 end
  else
    for i, id in ipairs(ids) do sizes[i] = call('HSTRLEN', key_jobs, id) end
  end
  return sizes
end
