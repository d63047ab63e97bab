-- end_leases: gives back what a worker process held that is known to be dead, before its leases run out.
-- KIND   write
-- NEEDS  base send lane head clock ready mint created ring admit lease old_place status utc give_back
-- KEYS   m w x e E q p* d* r* f*
-- ARGV   lane sequence version source how begun cursor
-- REPLY  u32 leases, u32 retried, u32 failed, u32 not begun, u8 more, next cursor
-- source: of the claim descriptors of that process, and of no other. how: its end, for the custom status: 'was killed by SIGKILL'.
-- begun: '', or ids, 8 bytes each: jobs that it held and that are not among them go back to their old place, as by release.
-- cursor: '0' at first, then, while there is more, what the last reply told.

if replay then return stored end
if #KEYS - f0 < levels then return redis.error_reply('CONFIG_CHANGED the queue has more levels now') end

if begun ~= '' then
  begun_ids = {}
  for at = 1, #begun, 8 do begun_ids[sub(begun, at, at + 7)] = true end
end
local page, wake = call('HSCAN', key_E, cursor, 'COUNT', 100), false
local next_cursor, more = page[1], page[1] ~= '0' and 1 or 0
for i = 1, #page[2], 2 do
  local lease, entry = page[2][i], page[2][i + 1]
  -- host:port:start:<source>:counter; the source may hold colons itself
  local named = #lease == 8 and string.match(sub(entry, 3 + unp('>I2', entry)), '^[^:]*:[^:]*:[^:]*:(.*):[^:]*$')
  if named and named == source then
    if counts.jobs >= 1000 then
      next_cursor, more = cursor, 1 -- the rest of this page
      break
    end
    wake = end_lease(lease, how) or wake
  end
end
if wake then ring() end
return finish(pack('>I4I4I4I4B', counts.leases, counts.retried, counts.failed, counts.unbegun, more) .. next_cursor)
