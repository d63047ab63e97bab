-- The records of a call and their spec. An entry of the spec stands for jobs in a row with the same u8 priority, u8 kind and u48 ms; u16: how many.
-- reads: config flags records0 spec
-- sets:  count RUN_BYTES
local RUN_BYTES = 10
local count = #ARGV - records0
if flags > 1 then
  if flags % 4 >= 2 then return redis.error_reply('ENQUEUE_REFUSED the queue takes no new jobs') end
  if flags % 16 >= FLAG_MAX_RUNNING then
    -- HERE refuse_elsewhere
  end
  if flags >= FLAG_REFUSE_ABOVE then
    -- HERE refuse_full
  end
end
if count > 1000 then return redis.error_reply('TOO_MANY jobs: expected at most 1000, got ' .. count) end
if count == 0 or #spec % RUN_BYTES ~= 0 then return redis.error_reply('BAD_REQUEST no records, or the spec is cut off') end
