-- Delete a key only while it still holds what we wrote: an owner, a lock.
--
-- KEYS  held   string
-- ARGV  value  str
--
-- Returns 'OK', 'OTHER' (it holds something else now) or 'NONE'.
local now_there = redis.call('GET', held)
if not now_there then return 'NONE' end
if now_there ~= value then return 'OTHER' end
redis.call('DEL', held)
return 'OK'
