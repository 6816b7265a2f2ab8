-- What was parked is told, or is nobody's: these go. By what they are, not by how many: others were parked since.
--
-- KEYS  state    hash
--       parked   list
-- ARGV  epoch    str
--       settled  list  as they were parked
--
-- Returns 'OK' or 'FENCED'.
if redis.call('HGET', state, 'epoch') ~= epoch then return 'FENCED' end
for _, data in ipairs(settled) do redis.call('LREM', parked, 1, data) end
return 'OK'
