-- Merges two remnants (lib/remnant): the greater of each part, so that nothing that either names comes back.
-- reads: before
-- sets:  greatest version_left
local function version_left(remnant)
  return #remnant < REMNANT_VERSION and sub(remnant, REMNANT_H, REMNANT_H_END) or sub(remnant, REMNANT_VERSION)
end

local function greatest(a, b)
  local function later(x, y) return before(x, y) and y or x end
  local h = later(sub(a, REMNANT_H, REMNANT_H_END), sub(b, REMNANT_H, REMNANT_H_END))
  local version = later(version_left(a), version_left(b))
  local generation_a, epoch_a = unp('>I4I4', a, REMNANT_GENERATION)
  local generation_b, epoch_b = unp('>I4I4', b, REMNANT_GENERATION)
  return h .. pack('>I4I4', math.max(generation_a, generation_b), math.max(epoch_a, epoch_b)) .. (version == h and '' or version)
end
