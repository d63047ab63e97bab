-- The common ack: groups of successes of which nothing is kept. It makes no function, as each costs 0.2 to 0.5 µs a call. All groups are checked
-- before anything is written. Groups that are not common are left in `plan` for the rest of ack.
-- reads: config earliest flags groups h_high h_low ids0 lane largest more priorities replay sequence waiting
-- sets:  FAILED SUCCEEDED argv count counts_places h_high h_low keep options plan refused sources statuses tombstones
if not replay and (flags < CLAIMS_FLAGS or flags == FLAG_REFUSE_ABOVE) and #ARGV == ids0 + 1 and #groups == 14 and more == ''
  and sub(config, CONFIG_KEEP, CONFIG_KEEP_END) == '\0\0\0\0' then
  -- HERE ack_one
end
local SUCCEEDED, FAILED = 0, 1
local options, sources, statuses = 0, '', ''
if more ~= '' then
  local length, last = 0, 1
  if #more > 2 then options, length = unp('>BI2', more) end
  if #more < 3 + length then return redis.error_reply('BAD_REQUEST options and sources are cut off') end
  sources, statuses = sub(more, 4, 3 + length), sub(more, 4 + length)
  while last <= length do last = last + 1 + byte(sources, last) end
  if last ~= length + 1 then return redis.error_reply('BAD_REQUEST a source is cut off') end
end
local argv, keep, tombstones, count = ARGV, 0, options % 2 == 1, #ARGV - ids0
-- Groups that are still to be ended: priority, kind, n, base (ids before its own), runs and delays (where they begin). nil: none
local plan, refused

-- whether the queue has max_running: then a call has all keys, as a free place is for a waiter
local counts_places = flags % 16 >= FLAG_MAX_RUNNING
if not replay then
  if counts_places and key_priorities ~= priorities then return redis.error_reply('BAD_REQUEST keys are missing') end
  keep = unp('>I4', config, CONFIG_KEEP)
  if count > 1000 then return redis.error_reply('TOO_MANY jobs: expected at most 1000, got ' .. count) end
  -- HERE check_groups

  at, base = 1, 0
  while base < count do
    local priority, kind, n = unp('>BBI2', groups, at)
    local runs, first = at + 4, ids0 + base + 1
    -- HERE hold_simple
    if simple then
      -- HERE end_simple
    else
      plan = plan or {}
      plan[#plan + 1] = { priority = priority, kind = kind, n = n, base = base, runs = runs, delays = at }
      if kind == FAILED then at = at + 6 * n end
    end
    base = base + n
  end
  if counts_places and waiting then plan = plan or {} end
  if not plan then
    if h_low == 4294967295 then h_high, h_low = h_high + 1, -1 end
    local h, payload = pack('>I4I4', h_high, h_low + 1), refused and concat(refused) or ''
    -- HERE store_answer
    return answer
  end
  refused = refused or {}
end
