-- Take a dead instance's inbox out of its hands: if it comes back now, it sees that it was buried.
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
