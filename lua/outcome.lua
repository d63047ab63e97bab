-- outcome: what became of a job: its result, that it stays failed, or that it is on its way.
-- KIND   read
-- NEEDS  base clock read
-- KEYS   m j x v V f* s*
-- ARGV   nonce version level id
-- REPLY  u8 what: 0 there is neither job nor result, 1 the result, 2 the job stays failed, 3 it is pending or running; the result, or the status

local at = tonumber(level)
if at < 1 or at > levels then return { nonce, h, '\0', '' } end
local over = call('ZSCORE', key_v, id)
local result = over and tonumber(over) > now and call('HGET', key_V, id)
if result then return { nonce, h, '\1', result } end
if call('ZSCORE', KEYS[f0 + at], id) then
  local more = call('HGET', key_x, id)
  return { nonce, h, '\2', more and sub(more, 11) or '' }
end
local here = call('HEXISTS', key_j, id) == 1 and not call('ZSCORE', KEYS[s0 + at], id)
return { nonce, h, here and '\3' or '\0', '' }
