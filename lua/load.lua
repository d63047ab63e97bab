-- load: adds jobs under ids that prepare issued. The reservation is used up.
-- KIND   admit
-- NEEDS  base lane check_queue clock decorated
-- KEYS   meta waiters jobs extras reservations ready* scheduled*
-- ARGV   lane sequence version reservation spec statuses records…
-- REPLY  id of the first job

if replay then return stored end
-- HERE batch
local issued = call('HGET', key_reservations, reservation)
if not issued then return redis.error_reply('RESERVATION_GONE used before, or older than an hour') end
if count ~= unp('>I2', issued) then
  return redis.error_reply('BAD_REQUEST jobs: expected ' .. unp('>I2', issued) .. ' (the reservation), got ' .. count)
end
local id_count = 1
-- HERE next_ids
high, low = unp('>I4I4', reservation)
low = low - 1
-- HERE new_jobs add_jobs
call('HDEL', key_reservations, reservation)
-- HERE store_answer
return answer
