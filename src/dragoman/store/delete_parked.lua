-- Delete parked results that were handled. By value, not by count: others may have been parked since.
--
-- KEYS  state    hash
--       parked   list
-- ARGV  epoch    str
--       handled  list  as they were parked
--
-- Returns 'OK' or 'FENCED'.
if redis.call('HGET', state, 'epoch') ~= epoch then return 'FENCED' end
for _, data in ipairs(handled) do redis.call('LREM', parked, 1, data) end
return 'OK'
