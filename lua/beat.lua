-- beat: keeps what a worker process says of itself, for a minute.
-- KIND   write
-- NEEDS  base check_read clock
-- KEYS   meta workers
-- ARGV   nonce version source record sweep
-- REPLY  next sweep
-- record: JSON; '' = the process has ended. sweep: where to look on for processes whose minute is over; '0' at first, then that of the last reply.

local END_MS = 60000

local function ended_of(page)
  local ended = {}
  for i = 1, #page, 2 do
    if unp('>I6', page[i + 1]) <= now - END_MS then ended[#ended + 1] = page[i] end
  end
  return ended
end

local found = call('HSCAN', key_workers, sweep, 'COUNT', 10)
local ended = ended_of(found[2])
if record == '' then ended[#ended + 1] = source end
if ended[1] then call('HDEL', key_workers, unpack(ended)) end
if record ~= '' then
  call('HSET', key_workers, source, pack('>I6', now) .. record)
  call('PEXPIRE', key_workers, END_MS)
end
return { nonce, h, found[1] }
