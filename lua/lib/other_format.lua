-- Refuses the data of another format.
-- reads: format
return redis.error_reply('FORMAT_UNSUPPORTED found format ' .. format .. ', expected ' .. DATA_FORMAT
  .. ': drain and delete the queue with the version of PinLater that wrote it, or use another server (embedded: another folder)')
