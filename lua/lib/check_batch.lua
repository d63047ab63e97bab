-- Refuses what is no name of a batch.
-- reads: batch
if #batch ~= 16 then return redis.error_reply('BAD_REQUEST batch: expected 16 bytes, got ' .. #batch) end
