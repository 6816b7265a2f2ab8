-- Remember a message that was saved without being accepted first, so that a repetition is recognised.
--
-- KEYS  claim   hash
-- ARGV  id      str
--       digest  str
--       ttl     int  ms
--
-- Returns 'OK' or 'KNOWN'.
if redis.call('EXISTS', claim) == 1 then return 'KNOWN' end
redis.call('HSET', claim, 'id', id, 'digest', digest, 'saved', '1')
redis.call('PEXPIRE', claim, ttl)
return 'OK'
