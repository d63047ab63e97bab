-- Calls a command with many values, 2,000 a call: unpack() fails at 8,000 (LUAI_MAXCSTACK).
-- sets:  call_in_chunks
local function call_in_chunks(command, key, values)
  for first = 1, #values, 2000 do
    call(command, key, unpack(values, first, math.min(first + 1999, #values)))
  end
end
