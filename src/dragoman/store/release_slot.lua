-- Release the slot of a job.
--
-- KEYS  reserved  zset  job ids by expiry, ms
-- ARGV  job       str
--       now       now
--       limit     int   slots the node has
--
-- Returns 'OK', 'FREED' (the node was full: announce the free slot) or 'NONE' (the job had no slot).
redis.call('ZREMRANGEBYSCORE', reserved, '-inf', now)
local before = redis.call('ZCARD', reserved)
if redis.call('ZREM', reserved, job) == 0 then return 'NONE' end
return before >= limit and 'FREED' or 'OK'
