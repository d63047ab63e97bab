-- read_batch: the jobs that are withdrawn for a batch, as they are stored.
-- KIND   read
-- NEEDS  base check_read fetch_records batch_ids
-- KEYS   meta jobs extras batch_of batches withdrawn*
-- ARGV   nonce version batch from budget
-- REPLY  one string: u8 known, u8 priority, u32 jobs of the batch; then where to go on ('' = the end); then three elements a job: its id (8) and its
--        score in decimal digits, its record, its extras ('' = none). A job that was removed since is left out
-- from: '0' at first. budget: bytes of records and extras; one job is always given.

-- HERE check_batch
local position, most = tonumber(from), tonumber(budget)
if not position or position % 1 > 0 or position < 0 or not most then return redis.error_reply('BAD_REQUEST expected a position and a budget') end
local entry = call('HGET', key_batches, batch)
if not entry then return { nonce, h, '\0\0\0\0\0\0', '' } end
local at, ids, bytes = byte(entry, BATCH_PRIORITY), ids_in(entry), 0
local reply = { nonce, h, pack('>BBI4', 1, at, #ids), '' }

-- false: the page is full
local function give(id, score, record, more)
  local size = #record + #more
  if bytes > 0 and bytes + size > most then return false end
  bytes = bytes + size
  local n = #reply
  -- not as the server writes it: it may write an exponent
  reply[n + 1], reply[n + 2], reply[n + 3] = id .. string.format(score % 1 > 0 and '%.4f' or '%d', score), record, more
  return true
end

while position < #ids and (bytes == 0 or bytes < most) do
  local last = math.min(position + math.max(1, floor((most - bytes) / (largest + EXTRA_BYTES))), #ids)
  local owners = call('HMGET', key_batch_of, unpack(ids, position + 1, last))
  local scores = call('ZMSCORE', KEYS[withdrawn0 + at], unpack(ids, position + 1, last))
  local records = call('HMGET', key_jobs, unpack(ids, position + 1, last))
  local extras = call('HMGET', key_extras, unpack(ids, position + 1, last))
  local full = false
  for i, record in ipairs(records) do
    full = full or owners[i] == batch and scores[i] and record and not give(ids[position + 1], tonumber(scores[i]), record, extras[i] or '')
    if not full then position = position + 1 end
  end
  if full then break end
end
if position < #ids then reply[4] = string.format('%d', position) end
return reply
