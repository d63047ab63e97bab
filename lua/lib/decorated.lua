-- A member of ready is the bare id of a job whose score is the id's own ms and that has no extras, as most have: a claim asks for nothing more.
-- Any other is decorated: id .. DECORATED, and a claim asks for its score and its extras. DECORATED sorts after nothing, so ties still go by id.
-- sets:  DECORATED
local DECORATED = '\1'
