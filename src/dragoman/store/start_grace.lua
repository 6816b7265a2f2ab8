-- Record when the grace period of a session without an owner ends, by the clock of Redis.
--
-- KEYS  grace   zset  '<session>|<epoch>' by the end of the grace period, ms
-- ARGV  member  str
--       after   int   ms from now
--       now     now
--
-- Returns that time.
local at = string.format('%.0f', now + after)
redis.call('ZADD', grace, at, member)
return at
