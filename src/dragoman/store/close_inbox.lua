-- Close an empty inbox. A later push gets 'GONE', and the sender looks up the owner again.
--
-- KEYS  opened  string
--       inbox   stream
--       counts  hash
-- ARGV  holder  str  incarnation or takeover mark that must have the inbox
--
-- Returns 'OK', 'BUSY' (there are entries), 'OTHER' (another holder has it) or 'NONE' (it is closed).
local current = redis.call('GET', opened)
if not current then return 'NONE' end
if current ~= holder then return 'OTHER' end
if redis.call('XLEN', inbox) > 0 then return 'BUSY' end
redis.call('DEL', opened, inbox, counts)
return 'OK'
