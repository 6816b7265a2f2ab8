-- Keep a notice for a user that is not connected; the oldest is deleted when there are too many.
--
-- KEYS  notices  list
-- ARGV  frame  str
--       most   int  frames kept for one user
--       ttl    int  ms
--
-- Returns how many are kept.
redis.call('RPUSH', notices, frame)
redis.call('LTRIM', notices, -most, -1)
redis.call('PEXPIRE', notices, ttl)
return redis.call('LLEN', notices)
