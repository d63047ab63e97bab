-- The only source of a call.
-- reads: source
-- sets:  any_source named
local any_source, named = false, { source }
