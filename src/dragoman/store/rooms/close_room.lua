-- Close a room: its log stays for the transcript, the rest goes.
--
-- USES  room
-- ARGV  reason        str
--       only_if_over  int  1: only a room that is empty or idle for too long
--
-- Returns {'OK', code, instances, sessions}, 'NONE' or 'OPEN' (it is not over).
if only_if_over == 1 and over() == '' then return 'OPEN' end
local reply = {'OK', redis.call('HGET', info, 'code'), counted('i:'), redis.call('HKEYS', members)}
redis.call('HSET', info, 'closed', reason)
redis.call('DEL', members, seniority, counts, recent, pending, removed)
for _, key in ipairs({info, log, captions}) do redis.call('PEXPIRE', key, transcript_ms) end
return reply
