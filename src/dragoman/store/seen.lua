-- A node was heard: score it with Redis' own time, which alone everybody shares.
--
-- KEYS  last_seen  zset
-- ARGV  node       str
--       now        now
--
-- Returns the time, ms.
local at = string.format('%.0f', now)
redis.call('ZADD', last_seen, at, node)
return at
