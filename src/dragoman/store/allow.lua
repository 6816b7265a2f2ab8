-- Take a token or a principal off the list of revoked ones.
--
-- KEYS  entries   hash
--       expiry    zset
--       version   string
-- ARGV  name      str
--
-- Returns the version, or 'NONE'.
if redis.call('HDEL', entries, name) == 0 then
    return 'NONE'
end
redis.call('ZREM', expiry, name)
return redis.call('INCR', version)
