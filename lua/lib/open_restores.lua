-- The restores that are open: number -> ms as it is stored. Whoever begins restores has few of them.
-- sets:  open_restores
local function open_restores()
  local found, cursor = {}, '0'
  repeat
    local page = call('HSCAN', key_restores, cursor, 'COUNT', 1000)
    cursor = page[1]
    for i = 1, #page[2], 2 do
      if page[2][i] ~= 'closed' then found[page[2][i]] = page[2][i + 1] end
    end
  until cursor == '0'
  return found
end
