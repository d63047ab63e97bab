-- Where each setting begins in the packed configuration of a queue shard (docs/design.md §3). Bytes count from 1. The loader puts these numbers
-- where the names stand, so a name costs a call nothing.
-- The number of the format of keys and records. Every format has it in this byte.
local DATA_FORMAT = 2
local CONFIG_FORMAT = 1
local CONFIG_FLAGS = 2
local CONFIG_PRIORITIES = 3
local CONFIG_VERSION, CONFIG_VERSION_END = 4, 11
local CONFIG_GENERATION, CONFIG_GENERATION_END = 12, 15
local CONFIG_EPOCH, CONFIG_EPOCH_END = 16, 19
local CONFIG_LEASE_MS, CONFIG_LEASE_MS_END = 20, 23
local CONFIG_KEEP, CONFIG_KEEP_END = 24, 27
local CONFIG_BODY_LIMIT, CONFIG_BODY_LIMIT_END = 36, 39
-- The tail: settings with a length byte each, in the order in which they were added.
local CONFIG_TAIL = 40
local CONFIG_CRASH_LIMIT, CONFIG_CRASH_LIMIT_END = 41, 42
local CONFIG_QUARANTINE_LENGTH = 43
-- Which entry of the tail a setting is. The others are found by their bytes above.
local ENTRY_RATE, ENTRY_MAX_RUNNING, ENTRY_HOME, ENTRY_REFUSE_ABOVE = 3, 4, 5, 8
-- Flags. CLAIMS_FLAGS: from here on claims need another look. FLAG_PAUSE belongs to the queue shard: it is no setting.
local CLAIMS_FLAGS, FLAG_MAX_RUNNING, FLAG_PAUSE = 8, 8, 16
-- It concerns no claim and no ack: where it is the only flag, they are as short as without flags.
local FLAG_REFUSE_ABOVE = 64
-- Clients that know no limits have only the flags below this one.
local FIRST_LIMIT_FLAG = 4
-- A grant's tokens may be used for so long. A process asks again after so long at most.
local GRANT_MS, LONGEST_REST_MS = 1000, 15000
-- In the settings of a call: flags and priorities, then all from the lease on.
local SETTINGS_FLAGS, SETTINGS_PRIORITIES, SETTINGS_LEASE_MS, SETTINGS_TAIL = 1, 2, 3, 23
-- What another shard has of a queue: version, then epoch.
local CARRIED_VERSION_END, CARRIED_EPOCH = 8, 9
-- What a deleted queue leaves. The version follows only if it is not h.
local REMNANT_H, REMNANT_H_END = 1, 8
local REMNANT_GENERATION, REMNANT_EPOCH_END = 9, 16
local REMNANT_VERSION = 17
-- Bytes of the head of a queue shard, and where its largest record stands. An earlier version of PinLater wrote a head without it.
local HEAD_BYTES, HEAD_LARGEST = 19, 16
local HEAD_WAITING = 4294967296
-- A call reads about so many bytes of records and statuses, and changes about so many jobs whose statuses it reads.
local CALL_BYTES = 1048576
local CALL_JOBS = 250
-- Format 1 had its configuration in field `c` of key `m`, with the flags here.
local FORMAT_ONE_FLAGS = 17
