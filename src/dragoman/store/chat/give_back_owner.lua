-- Give the owner key of a user back to the connection that had it before, unless another one has it by now.
--
-- KEYS  owner   string
-- ARGV  value   str  what we wrote
--       former  str  what was there before
--       ttl     int  ms
--
-- Returns 'OK', 'OTHER' (a newer connection owns the user) or 'NONE' (the key is gone).
local now_there = redis.call('GET', owner)
if not now_there then return 'NONE' end
if now_there ~= value then return 'OTHER' end
redis.call('SET', owner, former, 'PX', ttl)
return 'OK'
