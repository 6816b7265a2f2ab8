-- Add a token or a principal to the revocation list.
--
-- KEYS  entries   hash    name → JSON
--       expiry    zset    names by the time at which they leave the list, ms
--       version   string  counts the changes
-- ARGV  name      str
--       entry     str
--       until_ms  int     ms; 0 = until it is allowed again
--       limit     int     entries at most
--       prune     int     expired entries to remove at most
--       now       now
--
-- Returns the version, or 'FULL'.
for _, old in ipairs(redis.call('ZRANGEBYSCORE', expiry, '-inf', now, 'LIMIT', 0, prune)) do
    redis.call('HDEL', entries, old)
    redis.call('ZREM', expiry, old)
end
if redis.call('HEXISTS', entries, name) == 0 and redis.call('HLEN', entries) >= limit then
    return 'FULL'
end
redis.call('HSET', entries, name, entry)
if until_ms > 0 then
    redis.call('ZADD', expiry, until_ms, name)
else
    redis.call('ZREM', expiry, name)
end
return redis.call('INCR', version)
