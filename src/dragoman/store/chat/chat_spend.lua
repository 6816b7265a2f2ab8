-- Count bytes that a sender stored without its message being accepted first; chat_accept.lua counts the others.
--
-- KEYS  spent  string  bytes of this sender's day
-- ARGV  size   int
--       day    int     ms that they count
--
-- Returns {bytes of the day, ms that are left of it}.
local used = redis.call('INCRBY', spent, size)
if used == size then redis.call('PEXPIRE', spent, day) end
return {tostring(used), tostring(redis.call('PTTL', spent))}
