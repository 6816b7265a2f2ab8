-- Read the parked results for the current owner of a session. They stay until delete_parked, so that a lost reply or an
-- owner that dies loses none. An owner that was fenced by another resume gets none.
--
-- KEYS  state   hash
--       parked  list
-- ARGV  epoch   str
--
-- Returns the parked results, oldest first, or 'FENCED'.
if redis.call('HGET', state, 'epoch') ~= epoch then return 'FENCED' end
return redis.call('LRANGE', parked, 0, -1)
