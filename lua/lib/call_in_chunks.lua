-- unpack() fails at 8,000 values (LUAI_MAXCSTACK); 2,000 are 1,000 pairs, the most one call may carry.
-- sets:  call_in_chunks
local function call_in_chunks(command, key, values)
  for first = 1, #values, 2000 do
    call(command, key, unpack(values, first, math.min(first + 1999, #values)))
  end
end
