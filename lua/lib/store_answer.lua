-- Stores the head, and the answer with its payload in the lane.
-- reads: earliest h lane largest payload sequence waiting
-- sets:  answer
local answer = sequence .. h .. payload
call('HSET', key_meta, 'head', h .. pack('>I6I5', earliest, waiting and largest + HEAD_WAITING or largest), lane, answer)
