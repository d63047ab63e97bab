-- Refuses a queue whose data are in another format: the format that its configuration names, or format 1, which had another key. A queue that
-- format 1 deleted has no jobs.
-- reads: config
-- sets:  first_format format
local first_format = call('HGET', key_m, 'c')
local format = config and byte(config, CONFIG_FORMAT) or DATA_FORMAT
if first_format and byte(first_format, FORMAT_ONE_FLAGS) < 128 then format = 1 end
if format ~= DATA_FORMAT then
  -- HERE other_format
end
