-- prepare: issues ids for jobs that will be loaded later, and a reservation for them.
-- KIND   admit
-- NEEDS  base lane check_queue clock new_ids
-- KEYS   meta jobs reservations
-- ARGV   lane sequence version count
-- REPLY  reservation = id of the first job

if replay then return stored end
if floor(flags / 2) % 2 == 1 then return redis.error_reply('ENQUEUE_REFUSED the queue takes no new jobs') end
if flags >= FLAG_REFUSE_ABOVE then
  -- HERE refuse_full
end
local jobs = tonumber(count)
if jobs > 1000 then return redis.error_reply('TOO_MANY ids: expected at most 1000, got ' .. jobs) end
if jobs < 1 then return redis.error_reply('BAD_REQUEST count: expected 1 to 1000, got ' .. jobs) end
local high, low = new_ids(jobs)
local reservation = pack('>I4I4', high, low + 1)
call('HSET', key_reservations, reservation, pack('>I2I6', jobs, now))
return finish(reservation)
