-- load: puts jobs in line under ids that prepare issued; the ticket is used up.
-- KIND   admit
-- NEEDS  base lane head clock ready
-- KEYS   meta waiters jobs extras reservations ready* scheduled*
-- ARGV   lane sequence version ticket spec statuses records…
-- REPLY  id of the first job

if replay then return stored end
-- HERE batch
local issued = call('HGET', key_reservations, ticket)
if not issued then return redis.error_reply('TICKET_GONE used before, or older than an hour') end
if count ~= unp('>I2', issued) then
  return redis.error_reply('BAD_REQUEST jobs: expected ' .. unp('>I2', issued) .. ' (the ticket), got ' .. count)
end
local fresh = 1
-- HERE fresh
high, low = unp('>I4I4', ticket)
low = low - 1
-- HERE lines arrive
call('HDEL', key_reservations, ticket)
-- HERE store
return answer
