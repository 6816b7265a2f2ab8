-- Take one slot of a node for a job.
--
-- KEYS  reserved  zset  job ids by expiry, ms
-- ARGV  job       str
--       now       now   '' = Redis TIME (only tests pass a number)
--       ttl       int   ms
--       limit     int   slots the node has for this job
--
-- Returns 'OK', 'HELD' (this job has one already) or 'FULL <ms until one can expire>'.
redis.call('ZREMRANGEBYSCORE', reserved, '-inf', now)
if redis.call('ZSCORE', reserved, job) then return 'HELD' end
if redis.call('ZCARD', reserved) >= limit then
    local first = redis.call('ZRANGE', reserved, 0, 0, 'WITHSCORES')
    return 'FULL ' .. string.format('%.0f', first[2] and first[2] - now or 0)
end
redis.call('ZADD', reserved, now + ttl, job)
-- Never shorter: the slot of another job may have been taken for longer.
if redis.call('PTTL', reserved) < ttl then redis.call('PEXPIRE', reserved, ttl) end
return 'OK'
