-- Begin and end of the pause of this queue shard that ends by itself (lib/read_pause), for scripts that change nothing. Without one both are 0.
-- reads: flags now
-- sets:  begin_ms end_ms pause
local pause = flags % 32 >= FLAG_PAUSE and call('HGET', key_meta, 'pause') or string.rep('\0', 12)
local begin_ms, end_ms = unp('>I6I6', pause)
if begin_ms > now then begin_ms, end_ms = now, now + end_ms - begin_ms end
