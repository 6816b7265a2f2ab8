-- Take nodes not heard for long out of last_seen.
--
-- KEYS  last_seen  zset
-- ARGV  older_ms   int
--       most       int
--       now        now
--
-- Returns the forgotten ids.
local gone = redis.call('ZRANGEBYSCORE', last_seen, '-inf', now - older_ms, 'LIMIT', 0, most)
for _, node in ipairs(gone) do redis.call('ZREM', last_seen, node) end
return gone
