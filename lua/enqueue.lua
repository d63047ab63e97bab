-- enqueue: puts new jobs in line.
-- KIND   admit
-- NEEDS  base lane head clock ready
-- KEYS   m w j x p* d*
-- ARGV   lane sequence version spec statuses records…
-- REPLY  id of the first job; the others follow in a row

if replay then return { sequence, replay_h, replay } end
-- HERE batch
local fresh = count
-- HERE fresh lines arrive store
return { sequence, h, payload }
