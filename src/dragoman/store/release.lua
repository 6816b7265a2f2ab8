-- Give a job's slot back.
--
-- KEYS  reserved  zset
-- ARGV  job       str
--       now       now
--       limit     int   slots the node has
--
-- Returns 'OK', 'FREED' (the node was full and is not any more: tell those who wait) or 'NONE'.
redis.call('ZREMRANGEBYSCORE', reserved, '-inf', now)
local before = redis.call('ZCARD', reserved)
if redis.call('ZREM', reserved, job) == 0 then return 'NONE' end
return before >= limit and 'FREED' or 'OK'
