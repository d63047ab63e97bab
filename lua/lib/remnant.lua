-- What a deleted queue leaves: h, generation and epoch, and the version if it is another number than h.
-- sets:  remnant_of
local function remnant_of(h, config)
  local version = sub(config, CONFIG_VERSION, CONFIG_VERSION_END)
  return h .. sub(config, CONFIG_GENERATION, CONFIG_EPOCH_END) .. (version == h and '' or version)
end
