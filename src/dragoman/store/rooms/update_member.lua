-- Change what a member states about itself.
--
-- USES  room_members
-- ARGV  session  str
--       epoch    int  of the session
--       changes  str  JSON: the fields that change
--
-- Returns {'OK', member, version, instances}, 'NONE', 'NOT_MEMBER', 'STALE' (it joined with a higher epoch) or
-- 'LANGUAGES' (too many are heard).
local before, after = read(session), read(session)
if not before then return 'NOT_MEMBER' end
if epoch < before.epoch then return 'STALE' end
for name, value in pairs(cjson.decode(changes)) do after[name] = value end
if not fits(before, after) then return 'LANGUAGES' end
replace(session, before, after)
renew()
return {'OK', cjson.encode(after), redis.call('HINCRBY', info, 'version', 1), counted('i:')}
