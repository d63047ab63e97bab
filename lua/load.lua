-- load: puts jobs in line under ids that prepare issued; the ticket is used up.
-- KIND   admit
-- NEEDS  base lane head clock ready lines mint ring admit status arrive
-- KEYS   m w j x R p* d*
-- ARGV   lane sequence version ticket spec statuses records…
-- REPLY  id of the first job

if replay then return { sequence, replay_h, replay } end
local issued = call('HGET', key_R, ticket)
if not issued then return redis.error_reply('TICKET_GONE used before, or older than an hour') end
if count ~= unp('>I2', issued) then
  return redis.error_reply('BAD_REQUEST jobs: expected ' .. unp('>I2', issued) .. ' (the ticket), got ' .. count)
end
local high, low = unp('>I4I4', ticket)
local first, bad = arrive(high, low - 1)
if bad then return bad end
call('HDEL', key_R, ticket)
return finish(first)
