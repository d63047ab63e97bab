-- enqueue: puts new jobs in line.
-- KIND   admit
-- NEEDS  base lane head clock ready lines plain_enqueue mint ring admit status arrive
-- KEYS   m w j x p* d*
-- ARGV   lane sequence version spec statuses records…
-- REPLY  id of the first job; the others follow in a row

if replay then return { sequence, replay_h, replay } end
local first, bad = arrive(mint(count))
if bad then return bad end
return finish(first)
