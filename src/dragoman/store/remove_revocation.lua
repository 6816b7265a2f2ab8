-- Remove a token or a principal from the revocation list.
--
-- KEYS  entries   hash
--       expiry    zset
--       version   string
-- ARGV  name      str
--
-- Returns the version, or 'NONE' (it is not on the list).
if redis.call('HDEL', entries, name) == 0 then
    return 'NONE'
end
redis.call('ZREM', expiry, name)
return redis.call('INCR', version)
