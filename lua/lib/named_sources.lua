-- The sources of an ack, in the order of their numbers. any_source: the source does not matter.
-- reads: options sources
-- sets:  any_source named next_source
local any_source, named, next_source = options >= 2, {}, 1
while next_source <= #sources do
  local length = byte(sources, next_source)
  named[#named + 1] = sub(sources, next_source + 1, next_source + length)
  next_source = next_source + 1 + length
end
