-- Keep a result for a session nobody can be handed it for; whoever resumes it finds it.
--
-- KEYS  state   hash
--       owner   string
--       parked  list
-- ARGV  data    str
--       tried   str   the owner that cannot be handed it, '' = there was none
--       most    int
--       ttl     int   ms
--
-- Returns 'OK', 'OWNED' (by another than was tried, who may have looked at what is parked already), 'FULL' or 'NONE'
-- (no such session: nobody will ever ask).
if redis.call('EXISTS', state) == 0 then return 'NONE' end
local now = redis.call('GET', owner)
if now and now ~= tried then return 'OWNED' end
if redis.call('LLEN', parked) >= most then return 'FULL' end
redis.call('RPUSH', parked, data)
redis.call('PEXPIRE', parked, ttl)
return 'OK'
