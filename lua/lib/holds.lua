-- Whether the caller holds a running job: by its token, or without one (eight zero bytes) by the source in the claim descriptor.
-- reads: claim_of lease_of source source_in
-- sets:  holds NO_TOKEN source_of sources
local NO_TOKEN = '\0\0\0\0\0\0\0\0'
local sources = {}

local function source_of(running)
  local key = byte(running, 11) >= 8 and running or lease_of(running)
  if sources[key] == nil then sources[key] = source_in(claim_of(running)) or false end
  return sources[key]
end

local function holds(running, token)
  if not running then return false end
  if token == NO_TOKEN then return source_of(running) == source end
  return sub(running, 1, 8) == token
end
