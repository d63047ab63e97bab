-- held: of which jobs there is a record.
-- KIND   read
-- NEEDS  base check_read sizes_of
-- KEYS   meta jobs
-- ARGV   nonce version epoch ids…
-- REPLY  one string: u8 an id, 1 = there is a record

-- HERE check_epoch
local ids = {}
for i = ids0 + 1, #ARGV do ids[i - ids0] = ARGV[i] end
if #ids > 1000 then return redis.error_reply('TOO_MANY jobs: expected at most 1000, got ' .. #ids) end
local found = {}
for i, size in ipairs(sizes_of(ids)) do found[i] = size > 0 and '\1' or '\0' end
return { nonce, h, concat(found) }
