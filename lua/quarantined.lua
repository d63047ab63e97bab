-- quarantined: jobs that crashed too many workers and are to be moved to another queue.
-- KIND   read
-- NEEDS  base check_read
-- KEYS   meta jobs extras quarantined failed*
-- ARGV   nonce version limit
-- REPLY  an element a job: u8 priority, id (8), u8 1 if it is still there and failed, reservation (8, zero: none yet), u8 length, queue of the reservation,
-- u16 length, status, record
-- A call gives about CALL_BYTES of them; one job is always given. The others come once these are moved.

local page = call('HSCAN', key_quarantined, '0', 'COUNT', tonumber(limit))
while #page[2] == 0 and page[1] ~= '0' do page = call('HSCAN', key_quarantined, page[1], 'COUNT', tonumber(limit)) end
local reply, bytes = { nonce, h }, 0
for i = 1, math.min(#page[2], 2 * tonumber(limit)), 2 do
  if bytes >= CALL_BYTES then break end
  local priority, id = byte(page[2][i]), sub(page[2][i], 2)
  local reservation, queue = sub(page[2][i + 1], 1, 8), sub(page[2][i + 1], 9)
  local record = call('HGET', key_jobs, id)
  local more = call('HGET', key_extras, id)
  local there = priority <= priorities and record and call('ZSCORE', KEYS[failed0 + priority], id)
  local status = more and sub(more, 11) or ''
  bytes = bytes + (record and #record or 0) + #status
  reply[#reply + 1] = page[2][i] .. (there and '\1' or '\0') .. (reservation == '' and '\0\0\0\0\0\0\0\0' or reservation)
    .. pack('>B', #queue) .. queue .. pack('>I2', #status) .. status .. (record or '')
end
return reply
