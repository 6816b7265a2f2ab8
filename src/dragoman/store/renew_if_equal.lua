-- Renew the TTL of a key, if it still has the value that we wrote: an owner, a lease, a lock.
--
-- KEYS  key    string
-- ARGV  value  str
--       ttl    int  ms
--
-- Returns 'OK', 'OTHER' (it has another value) or 'NONE' (it does not exist).
local current = redis.call('GET', key)
if not current then return 'NONE' end
if current ~= value then return 'OTHER' end
redis.call('PEXPIRE', key, ttl)
return 'OK'
