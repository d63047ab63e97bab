-- enqueue: adds new jobs.
-- KIND   admit
-- NEEDS  base lane check_queue clock decorated
-- KEYS   meta waiters jobs ready* | extras scheduled*
-- ARGV   lane sequence version spec statuses records…
-- REPLY  id of the first job; the others follow in a row

if replay then return stored end
-- HERE batch
local id_count = count
-- HERE next_ids
if count == 1 and statuses == '' then
  -- HERE enqueue_one
end
if key_priorities ~= priorities and (statuses ~= '' or #spec > RUN_BYTES or byte(spec, 2) > 0) then return redis.error_reply('BAD_REQUEST keys are missing') end
-- HERE new_jobs add_jobs store_answer
return answer
