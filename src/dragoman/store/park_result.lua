-- Keep a result for a session whose owner cannot be reached; the next owner reads it.
--
-- KEYS  state       hash
--       owner       string
--       parked      list
-- ARGV  data        str
--       tried       str   the owner that could not be reached; '' = there was none
--       max_parked  int
--       ttl         int   ms
--
-- Returns 'OK', 'OWNED' (by another instance than `tried`, which may have read the parked results already), 'FULL' or
-- 'NONE' (there is no such session).
if redis.call('EXISTS', state) == 0 then return 'NONE' end
local current = redis.call('GET', owner)
if current and current ~= tried then return 'OWNED' end
if redis.call('LLEN', parked) >= max_parked then return 'FULL' end
redis.call('RPUSH', parked, data)
redis.call('PEXPIRE', parked, ttl)
return 'OK'
