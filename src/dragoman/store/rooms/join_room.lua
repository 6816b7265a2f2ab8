-- Add a session to a room, or let a member join again from another connection.
--
-- A member that joins again keeps its role and its time of joining; a full or locked room lets it in. One with a
-- claimed role has that role, and does not become host by seniority.
--
-- USES  room_members
-- ARGV  session  str
--       member   str  JSON; role and joined_ms are decided here
--
-- Returns {'OK', member, log epoch, seq, first seq that is kept, version, instances, 1 if it joins again}, 'NONE',
-- 'REMOVED' (the principal), 'STALE' (it joined with a higher epoch), 'LOCKED', 'FULL' or 'LANGUAGES' (too many).
local after, before = cjson.decode(member), read(session)
if redis.call('SISMEMBER', removed, after.principal) == 1 then return 'REMOVED' end
if before then
    if after.epoch < before.epoch then return 'STALE' end
    after.role, after.claimed, after.joined_ms = before.role, before.claimed, before.joined_ms
else
    local room = redis.call('HMGET', info, 'locked', 'creator')
    local invited = room[2] == after.principal or (after.claimed and after.role == 'host')
    if room[1] == '1' and not invited then return 'LOCKED' end
    if redis.call('HLEN', members) >= max_members then return 'FULL' end
    after.joined_ms = now
end
if not fits(before, after) then return 'LANGUAGES' end
if not before then
    local number = redis.call('HINCRBY', info, 'joins', 1)
    if not after.claimed then
        if redis.call('HEXISTS', counts, 'r:host') == 0 then after.role = 'host' end
        redis.call('ZADD', seniority, number + (after.role == 'listener' and 1e12 or 0), session)
    end
end
replace(session, before, after)
redis.call('HSET', info, 'empty_since_ms', '', 'active_ms', now)
local version = redis.call('HINCRBY', info, 'version', 1)
renew()
local room, first = redis.call('HMGET', info, 'log_epoch', 'seq'), redis.call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
local first_seq = first and tonumber(first[1]:match('^%d+')) or room[2] + 1
return {'OK', cjson.encode(after), room[1], tonumber(room[2]), first_seq, version, counted('i:'), before and 1 or 0}
