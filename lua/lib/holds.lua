-- Whether the caller holds a running job: by its token, or without one by the source in the claim descriptor. A token below 65,536 is none: it is the
-- number of a source of the call, from 0.
-- reads: any_source claim_of lease_of named source_in
-- sets:  claimed_by holds NO_TOKEN source_of
local NO_TOKEN = '\0\0\0\0\0\0'
local claimed_by = {}

local function source_of(running)
  local key = byte(running, 11) >= 8 and running or lease_of(running)
  if claimed_by[key] == nil then claimed_by[key] = source_in(claim_of(running)) or false end
  return claimed_by[key]
end

local function holds(running, token)
  if not running then return false end
  if sub(token, 1, 6) ~= NO_TOKEN then return sub(running, 1, 8) == token end
  return any_source or source_of(running) == named[unp('>I2', token, 7) + 1]
end
