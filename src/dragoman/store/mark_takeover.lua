-- Mark the inbox of a dead instance for takeover: if the instance comes back, it sees that it was declared dead.
--
-- KEYS  opened       string
-- ARGV  incarnation  str  the one that was declared dead
--       mark         str
--
-- Returns 'OK' (also if this mark was there), 'GONE' (the inbox is closed) or 'OTHER' (another holder has it).
local holder = redis.call('GET', opened)
if not holder then return 'GONE' end
if holder == mark then return 'OK' end
if holder ~= incarnation then return 'OTHER' end
redis.call('SET', opened, mark)
return 'OK'
