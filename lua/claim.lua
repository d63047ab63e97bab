-- claim: gives due jobs to one worker, under one lease and one token; an empty-handed worker is registered as waiting.
-- KIND   write
-- NEEDS  base lane head clock ready
-- KEYS   m w j x e E p* d* r*
-- ARGV   lane sequence version limit quotas claim waiter budget
-- REPLY  token (zeros: no jobs), due in (u48 ms from now; 0: none, or another holds the timer), u8 paused, u8 levels,
--        left (u32 a level), jobs block; then lists of records. Of one job it may be one string: u8 level, id (8), token (8), record
-- limit: jobs in all, 1 to 1000. quotas: '' or u16 a level. claim: claim descriptor. waiter: '' (do not wait) or where to ring (lib/reach).
-- budget: bytes of records; one job is always given.

-- A worker that holds the timer of the next scheduled job and was not heard of for so long is dead: safety claims come every 10 to 15 s.
local TIMER_MS = 15000

local NO_DUE = '\0\0\0\0\0\0'

local NO_TOKEN = '\0\0\0\0\0\0\0\0'

-- The lane of a claim that gave something keeps its token, or the name of its lease of one job; of one that gave nothing, the answer.
-- A function costs 0.2 to 0.5 µs a call to make, and more with each variable of others that it uses, so those of rare cases are made
-- where the case is.
if replay then
  local nothing_left = NO_DUE .. string.char(0, levels) .. string.rep('\0\0\0\0', levels)
  -- What an earlier claim gave, less what was taken away since (its lease ran out, jobs were deleted).
  local function claimed_before(token)
    local lease = call('HGET', key_E, token)
    local none = { sub(stored, 1, 12) .. NO_TOKEN .. nothing_left }
    if not lease then return none end
    local blocks, lists, at, last = {}, {}, 3, 2 + unp('>I2', lease)
    while at <= last do
      local level, n = unp('>BI2', lease, at)
      local ids, kept, lefts, records = {}, {}, {}, {}
      for i = 1, n do ids[i] = sub(lease, at + 8 * i - 5, at + 8 * i + 2) end
      local running, found = call('HMGET', KEYS[r0 + level], unpack(ids)), call('HMGET', key_j, unpack(ids))
      for i = 1, n do
        if running[i] and sub(running[i], 1, 8) == token and found[i] then
          lefts[#kept + 1] = pack('>I2', #kept) .. sub(running[i], 9, 10)
          kept[#kept + 1], records[#kept + 1] = ids[i], found[i]
        end
      end
      if kept[1] then
        blocks[#blocks + 1] = pack('>BI2', level, #kept) .. concat(kept) .. pack('>I2', #lefts) .. concat(lefts)
        lists[#lists + 1] = records
      end
      at = at + 3 + 8 * n
    end
    if not lists[1] then return none end
    return { stored .. nothing_left .. concat(blocks), unpack(lists) }
  end

  if #replay == 8 then return claimed_before(replay) end
  if #replay ~= 17 then return { stored } end
  -- HERE given_one
  return given_one(unp('>Bc8c8', replay)) or { sub(stored, 1, 12) .. NO_TOKEN .. nothing_left }
end

local fresh = 1
-- HERE fresh
local token = h
if limit == '1' and quotas == '' and earliest > now and not paused then
  -- HERE claim_one
end

local want, most = tonumber(limit), tonumber(budget)
if want > 1000 then return redis.error_reply('TOO_MANY jobs: expected a limit of at most 1000, got ' .. want) end
if want < 1 then return redis.error_reply('BAD_REQUEST limit: expected 1 to 1000, got ' .. want) end
if quotas ~= '' and #quotas ~= 2 * levels then return redis.error_reply('BAD_REQUEST quotas: expected one a level') end

if paused then
  local payload = NO_TOKEN .. NO_DUE .. string.char(1, levels) .. string.rep('\0\0\0\0', levels)
  if waiter ~= '' then
    -- HERE ring
    wait_for_ring(waiter)
  end
  -- HERE store
  return { answer }
end

local any_due = earliest <= now
if any_due then earliest = NEVER end
-- full: the byte budget is used up. holes: there were ids without a record
local total, full, holes = 0, false, false
local blocks, held, lists, left = {}, {}, {}, {}
-- marks of a job whose lease is of one job: then nobody has to count
local sole = want == 1 and 4 or 0
local plain = string.char(sole)

local move_due
if any_due then
  -- HERE send
  -- Moves what is due of a level from scheduled to ready, n at most: enough, as no more are taken. Returns how many stay due.
  move_due = function(level, n)
    local key = KEYS[d0 + level]
    local due = n > 0 and call('ZRANGE', key, '-inf', now, 'BYSCORE', 'LIMIT', 0, n, 'WITHSCORES') or {}
    if due[1] then
      for i = 1, #due, 2 do due[i], due[i + 1] = due[i + 1], due[i] .. ODD end
      send('ZADD', KEYS[p0 + level], due)
      call('ZREMRANGEBYRANK', key, 0, #due / 2 - 1)
    end
    local head = call('ZRANGE', key, 0, 0, 'WITHSCORES')
    if not head[1] then return 0 end
    earliest = math.min(earliest, tonumber(head[2]))
    return tonumber(head[2]) <= now and call('ZCOUNT', key, '-inf', now) or 0
  end
end

-- HERE fetch

local empty_below
for level = 1, levels do
  local ready, n, due = KEYS[p0 + level], want - total, 0
  if quotas ~= '' then n = math.min(n, (unp('>I2', quotas, 2 * level - 1))) end
  if full then n = 0 end
  if any_due then due = move_due(level, n) end
  -- odd: where an odd job stands: position -> member
  local look, taken, ids, packed, odd, records = n, 0, nil, nil, nil, nil
  while look > 0 and not records do
    ids, odd = call('ZRANGE', ready, '0', look == 1 and '0' or look - 1), nil
    packed = concat(ids)
    if #packed > 8 * #ids then
      odd = {}
      for i = 1, #ids do
        if #ids[i] > 8 then odd[i], ids[i] = ids[i], sub(ids[i], 1, 8) end
      end
      packed = concat(ids)
    end
    records, taken = fetch(ids, most)
    if not records then
      -- ids without a record can not run: they go, and are counted
      local whole, lost = part(ids)
      holes, look, taken = true, #whole, 0
      call('HDEL', key_x, unpack(lost))
      call('HINCRBY', key_m, 'lost', #lost)
      for i = 1, #lost do lost[#lost + 1] = lost[i] .. ODD end
      -- HERE send
      send('ZREM', ready, lost)
    end
  end
  if records then full = taken < #ids end
  if taken > 0 then
    local line, i, first, second, running = {}, 0, nil, nil, nil
    for r = 1, #records do
      local list = records[r]
      for k = 1, #list do
        -- attempts allowed, a byte at a time: a string would have to be made
        local high_byte, low_byte = byte(list[k], 2, 3)
        if low_byte ~= second or high_byte ~= first then
          first, second, running = high_byte, low_byte, token .. sub(list[k], 2, 3) .. plain
        end
        line[2 * i + 1], line[2 * i + 2] = ids[i + 1], running
        i = i + 1
      end
      lists[#lists + 1] = list
    end
    local lefts = {}
    if odd then
      -- attempts come from x, the original run-after from the score
      local members, odd_ids = {}, {}
      for i = 1, taken do
        if odd[i] then members[#members + 1], odd_ids[#odd_ids + 1] = odd[i], ids[i] end
      end
      local scores = members[1] and call('ZMSCORE', ready, unpack(members))
      local extras, k = members[1] and call('HMGET', key_x, unpack(odd_ids)), 0
      for i = 1, taken do
        if odd[i] then
          k = k + 1
          local attempts = extras[k] and sub(extras[k], 1, 2)
          if attempts then lefts[#lefts + 1] = pack('>I2', i - 1) .. attempts end
          line[2 * i] = token .. (attempts or sub(line[2 * i], 9, 10)) .. string.char(attempts and sole + 1 or sole) .. scores[k]
        end
      end
    end
    call('ZREMRANGEBYRANK', ready, '0', taken == 1 and '0' or taken - 1)
    call('HSET', KEYS[r0 + level], unpack(line))
    local block = pack('>BI2', level, taken) .. sub(packed, 1, 8 * taken)
    held[#held + 1] = block
    blocks[#blocks + 1] = block .. pack('>I2', #lefts) .. concat(lefts)
  end
  total = total + taken
  -- below a level where the limit was reached nothing is taken; most often there is nothing either, and one look is enough
  if n == 0 and not any_due and not empty_below then empty_below = call('EXISTS', unpack(KEYS, p0 + level, p0 + levels)) == 0 and 1 or 2 end
  if n > 0 and taken < n and not full and not holes or empty_below == 1 then
    left[level] = due
  else
    left[level] = due + call('ZCARD', KEYS[p0 + level])
  end
end

local ring_on = false
for level = 1, levels do
  ring_on = ring_on or left[level] > 0
  left[level] = pack('>I4', left[level])
end
local all_left = string.char(0, levels) .. concat(left)
if total == 0 then
  local due_in = earliest < NEVER and math.max(earliest - now, 1) or 0
  if waiter ~= '' then
    -- HERE ring
    wait_for_ring(waiter)
    if ring_on then
      -- jobs it may not take now (quotas), or behind ids without a record: a waiter is rung for them, itself perhaps
      ring()
    elseif due_in > 0 then
      -- one of those who wait holds the timer of the next scheduled job: the caller, unless another does
      local timer = call('HGET', key_m, 't')
      local due_ms, since = unp('>I6I6', timer or '\0\0\0\0\0\0\0\0\0\0\0\0')
      if timer and due_ms == earliest and now >= since and now - since <= TIMER_MS and sub(timer, 13) ~= waiter then
        due_in = 0
      else
        call('HSET', key_m, 't', pack('>I6I6', earliest, now) .. waiter)
      end
    end
  end
  local payload = NO_TOKEN .. pack('>I6', due_in) .. all_left
  -- HERE store
  return { answer }
end
local ids_block = concat(held)
-- a number in a call is written by printf of a double, a slow one
call('ZADD', key_e, string.format('%d', now + unp('>I4', config, 13)), token)
local entry = pack('>I2', #ids_block) .. ids_block .. claim
if sole > 0 then call('HSET', key_E, token, entry) else call('HSET', key_E, token, entry, token .. 'n', total) end
if ring_on and waiting then
  -- HERE ring
  ring()
end
local payload = token
-- HERE store
return { answer .. NO_DUE .. all_left .. concat(blocks), unpack(lists) }
