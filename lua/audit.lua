-- audit: which states of a priority each id is in, and how many jobs each lease has, for the conservation audit.
-- KIND   read
-- NEEDS  base check_read decorated created_ms lease batch_ids
-- KEYS   meta jobs extras leases lease_jobs result_expiries results batch_of batches ready* scheduled* withdrawn* running* failed* succeeded*
-- ARGV   nonce version priority ids leases
-- REPLY  a u32 an id (bits: 1 ready, 2 scheduled, 4 running, 8 failed, 16 succeeded, 32 record, 64 extra, 128 running without a lease,
--        256 another priority in its record, 512 scheduled before the first time that meta has, 1024 not named by its lease, 2048 simple in ready
--        although decorated, 4096 a result, 8192 its expiry, 16384 withdrawn, 32768 of a batch,
--        65536 of one that is not there or does not name it, 131072 of one for which it is not withdrawn), a u8 a lease (bits: 1 expiry, 2 entry,
--        4 counts as many jobs as run on it, 8 a count and nothing else); of each fewer than asked after CALL_BYTES
-- leases: u8 priority, id (8), token (8) each. Priority 0 and no id: a lease with an entry in lease_jobs.

local at = tonumber(priority)
if #ids > 8000 or #leases > SINGLE_LEASE_BYTES * 100 then return redis.error_reply('TOO_MANY ids or leases: expected at most 1000 and 100') end
if at < 1 or at > priorities then return redis.error_reply('BAD_REQUEST no priority ' .. at) end

-- What was read: records, and entries of leases, of which each id costs more than its bytes.
local bytes, ENTRY_WEIGHT = 0, 32

-- An entry as a table: id -> its priority; read once for all jobs of a lease.
local entries = {}
local function named_by(lease)
  if entries[lease] ~= nil then return entries[lease] end
  local entry, named = call('HGET', key_lease_jobs, lease), {}
  local cursor, last = 3, entry and 2 + unp('>I2', entry) or 0
  bytes = bytes + ENTRY_WEIGHT * last
  while cursor <= last do
    local block, n = unp('>BI2', entry, cursor)
    for k = 1, n do named[sub(entry, cursor + 8 * k - 5, cursor + 8 * k + 2)] = block end
    cursor = cursor + 3 + 8 * n
  end
  entries[lease] = entry and named or false
  return entries[lease]
end

local function lease_bits(lease, id)
  local bits, named = 0, #lease < SINGLE_LEASE_BYTES and named_by(lease)
  if not call('ZSCORE', key_leases, lease) then bits = bits + 128 end
  if named and named[id] ~= at then bits = bits + 1024 end
  return bits
end

-- A batch: its priority, and the ids that it names as keys. nil: it is not there.
local batches = {}
local function batch_named(name)
  if batches[name] == nil then
    local entry = call('HGET', key_batches, name)
    batches[name] = entry and { priority = byte(entry, BATCH_PRIORITY), ids = {} } or false
    bytes = bytes + (entry and ENTRY_WEIGHT * #entry or 0)
    for _, id in ipairs(entry and ids_in(entry) or {}) do batches[name].ids[id] = true end
  end
  return batches[name]
end

local function batch_bits(id)
  local name = call('HGET', key_batch_of, id)
  if not name then return 0 end
  local batch = batch_named(name)
  if not batch or not batch.ids[id] then return 32768 + 65536 end
  local stands = batch.priority <= priorities and call('ZSCORE', KEYS[withdrawn0 + batch.priority], id)
  return stands and 32768 or 32768 + 131072
end

local earliest = unp('>I6', meta[2], 9)
local moves = call('EXISTS', key_batch_of, KEYS[withdrawn0 + at]) > 0
local results = call('EXISTS', key_result_expiries, key_results) > 0
local found, seen = {}, {}
for i = 1, #ids / 8 do
  if bytes >= CALL_BYTES then break end
  local id, bits = sub(ids, 8 * i - 7, 8 * i), 0
  local running, record = call('HGET', KEYS[running0 + at], id), call('HGET', key_jobs, id)
  bytes = bytes + (record and #record or 0)
  local scheduled = call('ZSCORE', KEYS[scheduled0 + at], id)
  local simple, decorated = call('ZSCORE', KEYS[ready0 + at], id), call('ZSCORE', KEYS[ready0 + at], id .. DECORATED)
  if simple or decorated then bits = bits + 1 end
  if simple and (decorated or tonumber(simple) ~= created_ms(id) or call('HEXISTS', key_extras, id) == 1) then bits = bits + 2048 end
  if scheduled then bits = bits + 2 end
  if running then bits = bits + 4 + lease_bits(lease_of(running, at, id), id) end
  if call('ZSCORE', KEYS[failed0 + at], id) then bits = bits + 8 end
  if call('ZSCORE', KEYS[succeeded0 + at], id) then bits = bits + 16 end
  if record then bits = bits + 32 end
  if call('HEXISTS', key_extras, id) == 1 then bits = bits + 64 end
  if record and byte(record, 4) ~= at then bits = bits + 256 end
  if scheduled and tonumber(scheduled) < earliest then bits = bits + 512 end
  if results and call('HEXISTS', key_results, id) == 1 then bits = bits + 4096 end
  if results and call('ZSCORE', key_result_expiries, id) then bits = bits + 8192 end
  if moves then bits = bits + (call('ZSCORE', KEYS[withdrawn0 + at], id) and 16384 or 0) + batch_bits(id) end
  found[i] = pack('>I4', bits)
end

-- A lease of one job without an entry is known by its running job.
local function single_bits(lease)
  local priority, id, token = unp('>Bc8c8', lease)
  local running = priority <= priorities and call('HGET', KEYS[running0 + priority], id)
  local stands = running and sub(running, 1, 8) == token and byte(running, 11) >= 8
  return (call('ZSCORE', key_leases, lease) and 1 or 0) + (stands and 6 or 0)
end

local function entry_bits(lease)
  local bits = 0
  local named, left, expiry = named_by(lease), call('HGET', key_lease_jobs, lease .. 'n'), call('ZSCORE', key_leases, lease)
  if expiry then bits = bits + 1 end
  if named then
    bits = bits + 2
    local running = 0
    for id, block in pairs(named) do
      local value = call('HGET', KEYS[running0 + block], id)
      if value and lease_of(value, block, id) == lease then running = running + 1 end
    end
    if running > 0 and running == (left and tonumber(left) or 1) then bits = bits + 4 end
  elseif left and not expiry then
    bits = bits + 8
  end
  return bits
end

for i = 1, #leases / SINGLE_LEASE_BYTES do
  if bytes >= CALL_BYTES then break end
  local lease = sub(leases, SINGLE_LEASE_BYTES * (i - 1) + 1, SINGLE_LEASE_BYTES * i)
  seen[i] = string.char(byte(lease) > 0 and single_bits(lease) or entry_bits(sub(lease, -8)))
end
return { nonce, h, concat(found), concat(seen) }
