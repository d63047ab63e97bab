-- A job is simple if its score is the id's own ms and it has no extras; most are. Its member of ready is its id, and a claim reads nothing else of it.
-- Any other job is decorated: its member is id .. DECORATED, and a claim reads its score and its extras. Ties still go by id.
-- sets:  DECORATED
local DECORATED = '\1'
