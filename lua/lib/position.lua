-- A position as text: id, then the score with sixteenths of a ms (lib/original_score).
-- sets:  position_at position_of
local function position_of(score, id) return id .. string.format('%.4f', score) end

local function position_at(text) return tonumber(sub(text, 9)), sub(text, 1, 8) end
