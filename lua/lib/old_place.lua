-- Where a running job that was not begun stood in line: its score and member of p.
local function old_place(id, running)
  local run_after, has_x = sub(running, floor(byte(running, 11) / 2) % 2 == 1 and 20 or 12), byte(running, 11) % 2 == 1
  if run_after ~= '' then return run_after, id .. ODD end
  return string.format('%d', created_ms(id)), has_x and id .. ODD or id
end
