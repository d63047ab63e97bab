-- Refuses a call that is meant for another epoch of the queue: it was deleted and made again since, or the server lost its data.
-- reads: config epoch
-- sets:  present_epoch
local present_epoch = string.format('%d', (unp('>I4', config, CONFIG_EPOCH)))
if epoch ~= present_epoch then return redis.error_reply('EPOCH_CHANGED expected epoch ' .. epoch .. ', the queue has ' .. present_epoch) end
