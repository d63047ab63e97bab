-- Where a position stands in a sorted set. A position is a score and an id; what stood there may have been removed. A decorated member counts by its id.
-- reads: before
-- sets:  earlier rank_of
local function earlier(score, id, other_score, other_id)
  return score < other_score or (score == other_score and before(id, other_id))
end

-- How many members stand before (score, id), by binary search. itself: count the one that stands there too.
local function rank_of(key, score, id, itself)
  local low, high = 0, call('ZCARD', key)
  while low < high do
    local middle = floor((low + high) / 2)
    local member = call('ZRANGE', key, middle, middle, 'WITHSCORES')
    local at = tonumber(member[2])
    local counts = earlier(at, member[1], score, id) or itself and not earlier(score, id, at, member[1])
    if counts then low = middle + 1 else high = middle end
  end
  return low
end
