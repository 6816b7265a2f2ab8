-- What was parked, for the session's owner of now. It stays until the owner has written what became of it (session_unpark):
-- an answer that is lost, or an owner that dies with it, loses nothing. One that was overtaken by another resume gets nothing.
--
-- KEYS  state   hash
--       parked  list
-- ARGV  epoch   str
--
-- Returns the parked results, oldest first, or 'FENCED'.
if redis.call('HGET', state, 'epoch') ~= epoch then return 'FENCED' end
return redis.call('LRANGE', parked, 0, -1)
