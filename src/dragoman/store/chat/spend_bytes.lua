-- Count bytes of a message that was stored without being accepted first; accept_message.lua counts the others.
--
-- KEYS  spent  string  bytes that the sender stored in its day
-- ARGV  size   int
--       day    int     ms after which the bytes count no more
--
-- Returns {bytes of the day, ms that are left of it}.
local used = redis.call('INCRBY', spent, size)
if used == size then redis.call('PEXPIRE', spent, day) end
return {tostring(used), tostring(redis.call('PTTL', spent))}
