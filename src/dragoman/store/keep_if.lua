-- Renew a key only while it still holds what we wrote.
--
-- KEYS  held   string
-- ARGV  value  str
--       ttl    int  ms
--
-- Returns 'OK', 'OTHER' or 'NONE'.
local now_there = redis.call('GET', held)
if not now_there then return 'NONE' end
if now_there ~= value then return 'OTHER' end
redis.call('PEXPIRE', held, ttl)
return 'OK'
