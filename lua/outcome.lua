-- outcome: what became of jobs: the result, that it stays failed, or that it is on its way.
-- KIND   read
-- NEEDS  base clock read
-- KEYS   meta jobs extras result_expiries results failed* succeeded*
-- ARGV   nonce version budget levels_of ids…
-- REPLY  one element an id, in order: u8 what (0 there is neither job nor result, 1 a result, 2 the job stays failed, 3 it is pending or running),
--        then the result, or the status; fewer than asked when the budget is used up
-- levels_of: u8 an id. budget: bytes of results; one job's is always given.

local count = #ARGV - ids0
if count > 1000 then return redis.error_reply('TOO_MANY jobs: expected at most 1000, got ' .. count) end
if count ~= #levels_of then return redis.error_reply('BAD_REQUEST levels do not fit the ids') end

local function outcome(level, id)
  local over = call('ZSCORE', key_result_expiries, id)
  local result = over and tonumber(over) > now and call('HGET', key_results, id)
  if result then return '\1' .. result end
  if level < 1 or level > levels then return '\0' end
  if call('ZSCORE', KEYS[failed0 + level], id) then
    local more = call('HGET', key_extras, id)
    return '\2' .. (more and sub(more, 11) or '')
  end
  return call('HEXISTS', key_jobs, id) == 1 and not call('ZSCORE', KEYS[succeeded0 + level], id) and '\3' or '\0'
end

local reply, bytes = { nonce, h }, 0
for i = 1, count do
  local told = outcome(byte(levels_of, i), ARGV[ids0 + i])
  bytes = bytes + #told
  if i > 1 and bytes > tonumber(budget) then break end
  reply[i + 2] = told
end
return reply
