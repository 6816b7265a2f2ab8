-- What was parked goes to the session's owner of now, once. One that was overtaken by another resume gets nothing.
--
-- KEYS  state   hash
--       parked  list
-- ARGV  epoch   str
--
-- Returns the parked results, oldest first, or 'FENCED'.
if redis.call('HGET', state, 'epoch') ~= epoch then return 'FENCED' end
local found = redis.call('LRANGE', parked, 0, -1)
redis.call('DEL', parked)
return found
