-- Mark a dead instance's inbox for takeover: if the instance comes back, it sees that it was declared dead.
--
-- KEYS  opened       string
-- ARGV  incarnation  str  the one that was seen dead
--       mark         str
--
-- Returns 'OK' (also when this mark was there), 'GONE' (nothing is open) or 'OTHER'.
local holder = redis.call('GET', opened)
if not holder then return 'GONE' end
if holder == mark then return 'OK' end
if holder ~= incarnation then return 'OTHER' end
redis.call('SET', opened, mark)
return 'OK'
