-- Sessions whose grace is over.
--
-- KEYS  grace  zset
-- ARGV  most   int
--       now    now
--
-- Returns the members; whoever has ended one removes it.
return redis.call('ZRANGEBYSCORE', grace, '-inf', string.format('%.0f', now), 'LIMIT', 0, most)
