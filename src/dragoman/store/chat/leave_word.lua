-- Keep a frame for a user that is away; the oldest go when there are too many.
--
-- KEYS  words  list
-- ARGV  frame  str
--       most   int  frames kept for one user
--       ttl    int  ms
--
-- Returns how many are kept.
redis.call('RPUSH', words, frame)
redis.call('LTRIM', words, -most, -1)
redis.call('PEXPIRE', words, ttl)
return redis.call('LLEN', words)
