-- Have a room visited at this time, or before it and once more then.
--
-- KEYS  due        zset  rooms by their next visit, ms
--       announced  zset  rooms by the time at which they must be visited whatever is found before, ms
-- ARGV  room       str
--       after      int   ms
--       ttl        int   ms, of the second key
--       now        now   '' = Redis TIME (only tests pass a number)
--
-- Returns 'OK'.
redis.call('ZADD', due, 'LT', now + after, room)
redis.call('ZADD', announced, 'GT', now + after, room)
redis.call('PEXPIRE', announced, ttl)
return 'OK'
