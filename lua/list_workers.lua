-- list_workers: the worker processes of a queue shard that said something of themselves in the last minute.
-- KIND   read
-- NEEDS  base check_read clock
-- KEYS   meta workers
-- ARGV   nonce version cursor
-- REPLY  next cursor ('0' = the end), then for each process: source; u48 ms since then, record
-- It may give a process twice.

local END_MS = 60000
local found = call('HSCAN', key_workers, cursor, 'COUNT', 100)
local reply = { nonce, h, found[1] }
for i = 1, #found[2], 2 do
  local source, value = found[2][i], found[2][i + 1]
  local since_ms = math.max(0, now - unp('>I6', value))
  if since_ms < END_MS then
    reply[#reply + 1] = source
    reply[#reply + 1] = pack('>I6', since_ms) .. sub(value, 7)
  end
end
return reply
