-- claim_one: gives one job to one worker, under a lease of its alone, if it is a plain one and nothing is due. Any other is for claim.
-- KIND   write
-- NEEDS  base lane head clock
-- KEYS   meta waiters jobs leases ready* running*
-- ARGV   lane sequence version claim
-- REPLY  u8 level, id (8), token (8), record; nothing: ask claim
-- claim: claim descriptor.

if replay then
  -- HERE given_one
  return #replay == 17 and given_one(unp('>Bc8c8', replay)) or sub(stored, 1, 12)
end

local fresh = 1
-- HERE fresh
local token = h
if earliest > now and not paused then
  -- HERE claim_one
end
local payload = ''
-- HERE store
return answer
