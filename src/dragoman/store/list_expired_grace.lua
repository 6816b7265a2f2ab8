-- List sessions whose grace period has ended.
--
-- KEYS  grace  zset  '<session>|<epoch>' by the end of the grace period, ms
-- ARGV  limit  int   members at most
--       now    now
--
-- Returns the members. The instance that ends a session removes its member.
return redis.call('ZRANGEBYSCORE', grace, '-inf', string.format('%.0f', now), 'LIMIT', 0, limit)
