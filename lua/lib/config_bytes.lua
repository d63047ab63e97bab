-- Where each setting begins in a queue's packed configuration (docs/design.md §3); bytes count from 1. The loader puts these numbers where
-- the names stand, so a name costs a call nothing.
local CONFIG_VERSION, CONFIG_VERSION_END = 1, 8
local CONFIG_GENERATION, CONFIG_GENERATION_END = 9, 12
local CONFIG_LEASE_MS, CONFIG_LEASE_MS_END = 13, 16
local CONFIG_FLAGS = 17
local CONFIG_LEVELS = 18
local CONFIG_KEEP, CONFIG_KEEP_END = 19, 22
local CONFIG_BODY_LIMIT, CONFIG_BODY_LIMIT_END = 31, 34
local CONFIG_LIFE, CONFIG_LIFE_END = 35, 38
local CONFIG_CRASH_LIMIT, CONFIG_CRASH_LIMIT_END = 39, 40
-- In the settings of a call, which have neither version, generation nor life.
local SETTINGS_FLAGS, SETTINGS_LEVELS = 5, 6
-- What another shard has of a queue: version, then life.
local CARRIED_VERSION_END, CARRIED_LIFE = 8, 9
