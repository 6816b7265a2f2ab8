-- Remove nodes without a recent heartbeat from last_seen.
--
-- KEYS  last_seen  zset  node ids by last heartbeat, ms
-- ARGV  older_ms   int   age of the heartbeat
--       limit      int   nodes at most
--       now        now
--
-- Returns the removed ids.
local gone = redis.call('ZRANGEBYSCORE', last_seen, '-inf', now - older_ms, 'LIMIT', 0, limit)
for _, node in ipairs(gone) do redis.call('ZREM', last_seen, node) end
return gone
