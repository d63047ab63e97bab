-- wake: rings one waiter (a woken worker that is full passes the bell on).
-- KIND   write
-- NEEDS  base lane head clock mint ring
-- KEYS   m w
-- ARGV   lane sequence version
-- REPLY  nothing

if replay then return { sequence, replay_h, replay } end
ring()
return finish('')
