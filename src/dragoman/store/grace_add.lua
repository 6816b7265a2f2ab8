-- A session has no owner for now: note when its grace is over, by Redis' own time.
--
-- KEYS  grace   zset  '<session>|<epoch>' by the end of its grace, ms
-- ARGV  member  str
--       after   int   ms
--       now     now
--
-- Returns that time.
local at = string.format('%.0f', now + after)
redis.call('ZADD', grace, at, member)
return at
