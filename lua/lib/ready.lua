-- A member of ready is the bare id of a job whose score is the id's own ms and that has no extras, as most have: a claim asks for nothing more.
-- Any other is odd: id .. ODD, and a claim asks for its score and its extras. ODD sorts after nothing, so ties still go by id.
-- sets:  ODD
local ODD = '\1'
