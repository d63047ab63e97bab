-- outcome: what became of jobs: a result, failed for good, or neither yet.
-- KIND   read
-- NEEDS  base clock check_read
-- KEYS   meta jobs extras result_expiries results failed* succeeded*
-- ARGV   nonce version budget priorities_of ids…
-- REPLY  one element an id, in order: u8 what (0 there is neither job nor result, 1 a result, 2 the job stays failed, 3 it is pending or running),
--        then the result, or the status; fewer than asked when the budget is used up
-- priorities_of: u8 an id. budget: bytes of results; one job's is always given.

local count = #ARGV - ids0
if count > 1000 then return redis.error_reply('TOO_MANY jobs: expected at most 1000, got ' .. count) end
if count ~= #priorities_of then return redis.error_reply('BAD_REQUEST priorities do not fit the ids') end

local function outcome(priority, id)
  local over = call('ZSCORE', key_result_expiries, id)
  local result = over and tonumber(over) > now and call('HGET', key_results, id)
  if result then return '\1' .. result end
  if priority < 1 or priority > priorities then return '\0' end
  if call('ZSCORE', KEYS[failed0 + priority], id) then
    local more = call('HGET', key_extras, id)
    return '\2' .. (more and sub(more, 11) or '')
  end
  return call('HEXISTS', key_jobs, id) == 1 and not call('ZSCORE', KEYS[succeeded0 + priority], id) and '\3' or '\0'
end

local reply, bytes = { nonce, h }, 0
for i = 1, count do
  local found = outcome(byte(priorities_of, i), ARGV[ids0 + i])
  bytes = bytes + #found
  if i > 1 and bytes > tonumber(budget) then break end
  reply[i + 2] = found
end
return reply
