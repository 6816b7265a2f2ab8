-- Restore the former owner of a user, if the key still has the value that we wrote.
--
-- KEYS  owner   string
-- ARGV  value   str  that we wrote
--       former  str  that was there before
--       ttl     int  ms
--
-- Returns 'OK', 'OTHER' (a newer connection owns the user) or 'NONE' (the key has expired).
local current = redis.call('GET', owner)
if not current then return 'NONE' end
if current ~= value then return 'OTHER' end
redis.call('SET', owner, former, 'PX', ttl)
return 'OK'
