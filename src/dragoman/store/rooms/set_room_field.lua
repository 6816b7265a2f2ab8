-- The host changes a setting of the room.
--
-- USES  room_members
-- ARGV  session  str  the host
--       epoch    int  of the host's session
--       field    str  locked, paused, persistent or settings
--       value    str
--
-- Returns {'OK', version, instances}, 'NONE', 'NOT_HOST' or 'STALE' (the host joined with a higher epoch).
local refused = refuse_host(session, epoch)
if refused then return refused end
redis.call('HSET', info, field, value)
if field == 'persistent' then persistent = value == '1' end
renew()
return {'OK', redis.call('HINCRBY', info, 'version', 1), counted('i:')}
