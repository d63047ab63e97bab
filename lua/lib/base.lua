-- Short names for what every script calls.
-- sets:  byte call concat floor pack sub unp
local call, pack, unp = redis.call, struct.pack, struct.unpack
local sub, byte, floor, concat = string.sub, string.byte, math.floor, table.concat
