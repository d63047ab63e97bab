-- r[id] = token (8), attempts left (2), marks (1), [own lease (8)], [original run-after, if it is not the id's own ms].
-- marks: 1 = has x, 2 = own lease follows, 4 = its lease is of one job
local function lease_of(running)
  if floor(byte(running, 11) / 2) % 2 == 1 then return sub(running, 12, 19) end
  return sub(running, 1, 8)
end
