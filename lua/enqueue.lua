-- enqueue: puts new jobs in line.
-- KIND   admit
-- NEEDS  base lane head clock ready
-- KEYS   meta waiters jobs ready* | extras scheduled*
-- ARGV   lane sequence version spec statuses records…
-- REPLY  id of the first job; the others follow in a row

if replay then return stored end
-- HERE batch
local fresh = count
-- HERE fresh
if count == 1 and statuses == '' then
  -- HERE enqueue_one
end
if key_levels ~= levels and (statuses ~= '' or #spec > RUN_BYTES or byte(spec, 2) > 0) then return redis.error_reply('BAD_REQUEST keys are missing') end
-- HERE lines arrive store
return answer
