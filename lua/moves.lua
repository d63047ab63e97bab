-- moves: what is open of the archive's protocol, a page at a time.
-- KIND   read
-- NEEDS  base check_read batch_ids open_restores
-- KEYS   meta batches restores
-- ARGV   nonce version cursor
-- REPLY  epoch in decimal digits, highest closed restore (8), next cursor ('0' = the end); then in the first page for each open restore its number (8),
--        u48 ms; and for each batch of the page its name (16), u48 ms, u8 priority, u32 jobs
-- cursor: that of HSCAN; '0' at first. A batch may come twice.

if not string.match(cursor, '^%d+$') then return redis.error_reply('BAD_REQUEST cursor: expected that of an earlier page') end
local page = call('HSCAN', key_batches, cursor, 'COUNT', 100)
local closed = call('HGET', key_restores, 'closed') or '\0\0\0\0\0\0\0\0'
local reply = { nonce, h, string.format('%d', (unp('>I4', config, CONFIG_EPOCH))), closed, page[1] }
if cursor == '0' then
  for number, since in pairs(open_restores()) do reply[#reply + 1] = number .. since end
end
for i = 1, #page[2], 2 do
  local entry = page[2][i + 1]
  reply[#reply + 1] = page[2][i] .. sub(entry, 1, BATCH_PRIORITY) .. pack('>I4', #ids_in(entry))
end
return reply
