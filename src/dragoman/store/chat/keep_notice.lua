-- Keep a notice for a user that is not connected; the oldest is deleted if there are too many.
--
-- KEYS  notices      list
-- ARGV  frame        str
--       max_notices  int   of one user
--       ttl          int   ms
--
-- Returns how many there are.
redis.call('RPUSH', notices, frame)
redis.call('LTRIM', notices, -max_notices, -1)
redis.call('PEXPIRE', notices, ttl)
return redis.call('LLEN', notices)
