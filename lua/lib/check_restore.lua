-- Refuses what is no number of a restore.
-- reads: restore
if #restore ~= 8 then return redis.error_reply('BAD_REQUEST restore: expected 8 bytes, got ' .. #restore) end
