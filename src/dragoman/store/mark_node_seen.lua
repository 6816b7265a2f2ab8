-- Record the time of a heartbeat, by the clock of Redis, which all instances share.
--
-- KEYS  last_seen  zset  node ids by last heartbeat, ms
-- ARGV  node       str
--       now        now
--
-- Returns the time, ms.
local at = string.format('%.0f', now)
redis.call('ZADD', last_seen, at, node)
return at
