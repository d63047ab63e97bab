-- audit: in which places of a level each id stands, and how many jobs each lease has, for the conservation audit.
-- KIND   read
-- NEEDS  base read lease
-- KEYS   m j x e E p* d* r* f* s*
-- ARGV   nonce version level ids tokens
-- REPLY  a u16 an id (bits: 1 ready, 2 scheduled, 4 running, 8 failed, 16 succeeded, 32 record, 64 extra, 128 running without a lease,
--        256 the record's priority is another), a u8 a token (bits: 1 expiry, 2 entry, 4 the jobs of it that run are as many as it counts)

local at = tonumber(level)
if #ids > 8000 or #tokens > 8 * 100 then return redis.error_reply('TOO_MANY ids or tokens: expected at most 1000 and 100') end
if at < 1 or at > levels then return redis.error_reply('BAD_REQUEST no level ' .. at) end

local places, seen = {}, {}
for i = 1, #ids / 8 do
  local id, bits = sub(ids, 8 * i - 7, 8 * i), 0
  local running, record = call('HGET', KEYS[r0 + at], id), call('HGET', key_j, id)
  if call('ZSCORE', KEYS[p0 + at], id) then bits = bits + 1 end
  if call('ZSCORE', KEYS[d0 + at], id) then bits = bits + 2 end
  if running then bits = bits + 4 end
  if call('ZSCORE', KEYS[f0 + at], id) then bits = bits + 8 end
  if call('ZSCORE', KEYS[s0 + at], id) then bits = bits + 16 end
  if record then bits = bits + 32 end
  if call('HEXISTS', key_x, id) == 1 then bits = bits + 64 end
  if running and not call('ZSCORE', key_e, lease_of(running)) then bits = bits + 128 end
  if record and byte(record, 4) ~= at then bits = bits + 256 end
  places[i] = pack('>I2', bits)
end

for i = 1, #tokens / 8 do
  local lease, bits = sub(tokens, 8 * i - 7, 8 * i), 0
  local entry, left = call('HGET', key_E, lease), call('HGET', key_E, lease .. 'n')
  if call('ZSCORE', key_e, lease) then bits = bits + 1 end
  if entry then
    bits = bits + 2
    local cursor, last, running = 3, 2 + unp('>I2', entry), 0
    while cursor <= last do
      local block, n = unp('>BI2', entry, cursor)
      for k = 1, n do
        local value = call('HGET', KEYS[r0 + block], sub(entry, cursor + 8 * k - 5, cursor + 8 * k + 2))
        if value and lease_of(value) == lease then running = running + 1 end
      end
      cursor = cursor + 3 + 8 * n
    end
    if running == (left and tonumber(left) or 1) then bits = bits + 4 end
  end
  seen[i] = string.char(bits)
end
return { nonce, h, concat(places), concat(seen) }
