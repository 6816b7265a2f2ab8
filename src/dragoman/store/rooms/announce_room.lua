-- Have a room visited after this time at the latest, and once more when what is announced has been written.
--
-- KEYS  due        zset  rooms by their next visit, ms
--       announced  zset  rooms by the time until which something may be written that no visit has seen, ms
-- ARGV  room       str
--       after      int   ms
--       guard      int   ms within which the caller writes; the same in every call, so that later ones end later
--       ttl        int   ms, of the second key
--       now        now   '' = Redis TIME (only tests pass a number)
--
-- Returns 'OK'.
redis.call('ZADD', due, 'LT', now + after, room)
redis.call('ZADD', announced, 'GT', now + guard, room)
redis.call('PEXPIRE', announced, ttl)
return 'OK'
