-- Puts back what a queue left when it was deleted: ids, versions, generation and epoch go on from the remnant of the registry, and from what its own
-- meta may still have. priorities and the like mean nothing then.
-- reads: config deleted greatest h_high h_low remnant remnant_of version_left
-- sets:  config deleted h_high h_low
if remnant ~= '' then
  local left = deleted and greatest(remnant, remnant_of(pack('>I4I4', h_high, h_low), config)) or remnant
  h_high, h_low = unp('>I4I4', left)
  local settings = string.rep('\0', CONFIG_TAIL - CONFIG_LEASE_MS)
  config = string.char(DATA_FORMAT, 128, 1) .. version_left(left) .. sub(left, REMNANT_GENERATION, REMNANT_EPOCH_END) .. settings
  deleted = true
end
