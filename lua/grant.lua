-- grant: gives tokens of a queue's rate to one process, and takes back those that it did not use. Only the home shard has the account.
-- KIND   write
-- NEEDS  base lane check_queue clock new_ids entries is_home account
-- KEYS   meta grantees
-- ARGV   lane sequence version grantee want unused place
-- REPLY  u32 tokens, u48 ms for which they may be used, u48 ms until this process may ask for more (0: at once; all ones: not before the rate
--        changes), u32 processes that asked lately
-- grantee: the session of a client (8). want: how many tokens. unused: how many of the last grant were not used, within its time.
-- place: '1' if it comes at the time that it was given.

if replay then return stored end
local wanted, returned = tonumber(want), tonumber(unused)
if wanted < 0 or wanted > 1000000 or returned < 0 or returned > 1000000 then return redis.error_reply('BAD_REQUEST tokens: expected 0 to 1,000,000') end
-- the configuration changed meanwhile: the caller looks at it again. Tokens that came from no account could be used once there is one.
if not is_home(config) or not refill(config) then return finish(pack('>I4I6I6I4', 0, 0, 0, 0)) end

-- A process is counted for so long after it asked.
local LATELY_MS = 60000

local of_now = math.min(returned, granted)
local of_before = math.min(returned - of_now, granted_before)
granted, granted_before = granted - of_now, granted_before - of_before
units = math.min(units + (of_now + of_before) * per_ms, burst * per_ms)
local tokens = math.min(wanted, floor(units / per_ms))
units, granted = units - tokens * per_ms, granted + tokens

-- Those that get less than they want stand in a line, so that they do not all ask again at once: two of them come at least a token apart, and where tokens come
-- fast, so many tokens that an ask is worth it. One that comes a little too early waits for its token.
local wait_ms = 0
if tokens < wanted then
  wait_ms = NEVER
  if token_count > 0 then
    local token_ms = per_ms / token_count
    local due_ms = now + math.ceil((per_ms - units) / token_count)
    if tokens == 0 and place == '1' and due_ms - now < token_ms / 2 then
      wait_ms = due_ms - now
    else
      local place_ms = math.max(line_ms + math.max(token_ms, math.min(50, burst * token_ms / 2)), due_ms)
      line_ms = math.ceil(math.min(place_ms, math.max(due_ms, now + LONGEST_REST_MS)))
      wait_ms = line_ms - now
    end
  end
end
-- HERE store_account
call('ZADD', key_grantees, now, grantee)
local ended = call('ZRANGE', key_grantees, '-inf', now - LATELY_MS, 'BYSCORE', 'LIMIT', 0, 100)
if ended[1] then call('ZREM', key_grantees, unpack(ended)) end
call('PEXPIRE', key_grantees, LATELY_MS)
return finish(pack('>I4I6I6I4', tokens, GRANT_MS, wait_ms, call('ZCARD', key_grantees)))
