-- End a membership: the session leaves, or the host removes it and its principal stays out.
--
-- If the last host goes, the longest-present speaker, else the longest-present member, becomes host.
--
-- USES  room_members
-- ARGV  session  str
--       epoch    int  of the session that acts
--       host     str  the session that removes it; '' = it leaves
--
-- Returns {'OK', version, instances, the new host or '', members left, the instance it was on}, 'NONE', 'NOT_HOST',
-- 'NOT_MEMBER' or 'STALE' (the session that acts joined with a higher epoch).
local refused = host ~= '' and refuse_host(host, epoch)
if refused then return refused end
local member = read(session)
if not member then return 'NOT_MEMBER' end
if host == '' and epoch < member.epoch then return 'STALE' end
if host ~= '' then redis.call('SADD', removed, member.principal) end
replace(session, member, nil)
local new_host = ''
if redis.call('HEXISTS', counts, 'r:host') == 0 then
    new_host = redis.call('ZRANGE', seniority, 0, 0)[1] or ''
    if new_host ~= '' then set_role(new_host, 'host') end
end
local left = redis.call('HLEN', members)
if left == 0 then redis.call('HSET', info, 'empty_since_ms', now) end
renew()
return {'OK', redis.call('HINCRBY', info, 'version', 1), counted('i:'), new_host, left, member.instance}
