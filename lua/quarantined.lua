-- quarantined: a page of the jobs that crashed too many workers and are to be moved to another queue.
-- KIND   read
-- NEEDS  base check_read
-- KEYS   meta quarantined
-- ARGV   nonce version cursor
-- REPLY  next cursor, then an element a job: u8 priority, id (8), and its reservation if it has one: reservation (8), queue
-- cursor: '0' at first and at the end.

local page = call('HSCAN', key_quarantined, cursor, 'COUNT', 100)
local reply = { nonce, h, page[1] }
for i = 1, #page[2], 2 do reply[#reply + 1] = page[2][i] .. page[2][i + 1] end
return reply
