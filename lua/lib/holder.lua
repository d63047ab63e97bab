-- Whether the caller holds a running job: by token, or without one (eight zero bytes) by the source in the claim descriptor.
local NO_TOKEN = '\0\0\0\0\0\0\0\0'
local sources = {}

local function source_of(lease)
  local known = sources[lease]
  if known == nil then
    local entry = call('HGET', key_E, lease)
    -- host:port:start:<source>:counter; the source may hold colons itself
    known = entry and string.match(sub(entry, 3 + unp('>I2', entry)), '^[^:]*:[^:]*:[^:]*:(.*):[^:]*$') or false
    sources[lease] = known
  end
  return known
end

local function holds(running, token)
  if not running then return false end
  if token == NO_TOKEN then return source_of(lease_of(running)) == source end
  return sub(running, 1, 8) == token
end
