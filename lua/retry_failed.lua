-- retry_failed: puts failed jobs of a level back in line, the oldest first, or those named.
-- KIND   write
-- NEEDS  base lane head clock ready mint ring admit status
-- KEYS   m w x p* d* f*
-- ARGV   lane sequence version level limit attempts kind ms ids…
-- REPLY  u32 how many
-- limit: at most so many (1 to 1000; '0': only the ids). kind, ms: when (0 now, 1 absolute, 2 delay).

if replay then return { sequence, replay_h, replay } end
local at, most, left = tonumber(level), tonumber(limit), tonumber(attempts)
local named = #ARGV - ids0
if most > 1000 or named > 1000 then return redis.error_reply('TOO_MANY jobs: expected at most 1000, got ' .. math.max(most, named)) end
if at > levels and most == 0 then return finish(pack('>I4', 0)) end
if at < 1 or at > levels or left < 1 or left > 65535 then return redis.error_reply('BAD_REQUEST no such level or attempts') end

local failed, ids = KEYS[f0 + at], {}
if named > 0 then
  local seen = {}
  for i, score in ipairs(call('ZMSCORE', failed, unpack(ARGV, ids0 + 1, ids0 + named))) do
    local id = ARGV[ids0 + i]
    if score and not seen[id] then ids[#ids + 1] = id end
    seen[id] = true
  end
elseif most > 0 then
  ids = call('ZRANGE', failed, 0, most - 1)
end
if not ids[1] then return finish(pack('>I4', 0)) end

local score = kind == '0' and now or kind == '2' and now + tonumber(ms) or tonumber(ms)
local line, more = {}, {}
local extras = call('HMGET', key_x, unpack(ids))
for i, id in ipairs(ids) do
  line[2 * i - 1], line[2 * i] = score, score <= now and id .. ODD or id
  local old = extras[i]
  more[2 * i - 1], more[2 * i] = id, extra(left, now, old and unp('>I2', old, 9) or 0, old and sub(old, 11) or '')
end
send('ZREM', failed, ids)
send('HSET', key_x, more)
if admit(at, score <= now and line or {}, score > now and line or {}) then ring() end
return finish(pack('>I4', #ids))
