-- The host makes another member host, and becomes a speaker.
--
-- USES  room_members
-- ARGV  session  str  the host
--       epoch    int  of the host's session
--       to       str  session of the new host
--
-- Returns {'OK', version, instances}, 'NONE', 'NOT_HOST', 'STALE' (the host joined with a higher epoch) or 'NOT_MEMBER'.
local refused = refuse_host(session, epoch)
if refused then return refused end
if not read(to) then return 'NOT_MEMBER' end
set_role(session, 'speaker')
set_role(to, 'host')
renew()
return {'OK', redis.call('HINCRBY', info, 'version', 1), counted('i:')}
