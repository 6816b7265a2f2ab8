-- Close an emptied inbox, so that a late push is told GONE and re-resolves its owner.
--
-- KEYS  opened  string
--       inbox   stream
--       counts  hash
-- ARGV  holder  str  incarnation or takeover mark that must be there
--
-- Returns 'OK', 'BUSY' (there are entries), 'OTHER' or 'NONE'.
local now_there = redis.call('GET', opened)
if not now_there then return 'NONE' end
if now_there ~= holder then return 'OTHER' end
if redis.call('XLEN', inbox) > 0 then return 'BUSY' end
redis.call('DEL', opened, inbox, counts)
return 'OK'
