-- Added to the crashes of a job in extras, and to its index in a claim's reply: its last run ended in a crash, so it may be to blame. A worker runs
-- it alone. The end of a run takes the mark away.
-- sets:  SUSPECT
local SUSPECT = 32768
