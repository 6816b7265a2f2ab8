-- Keep a result for a session nobody owns at the moment; whoever resumes it finds it.
--
-- KEYS  state   hash
--       parked  list
-- ARGV  data    str
--       most    int
--       ttl     int   ms
--
-- Returns 'OK', 'FULL' or 'NONE' (no such session: nobody will ever ask).
if redis.call('EXISTS', state) == 0 then return 'NONE' end
if redis.call('LLEN', parked) >= most then return 'FULL' end
redis.call('RPUSH', parked, data)
redis.call('PEXPIRE', parked, ttl)
return 'OK'
