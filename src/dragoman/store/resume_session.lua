-- Take a session over for a client that shows its resume token, and fence its former owner.
--
-- KEYS  state      hash
--       owner      string
--       outbox     stream
-- ARGV  token      str   hash of the resume token
--       subject    str   principal that asks
--       last_seq   int   the last message that the client has
--       instance   str
--       owner_ttl  int   ms
--       ttl        int   ms
--
-- Returns {'OK', epoch, former owner or '', state, missed messages}, all of this epoch: a later read could see the next
-- one. Or {'NONE'}, {'DENIED'}, {'TOO_OLD'} (messages that the client misses are deleted).
local have = redis.call('HMGET', state, 'token', 'seq', 'subject')
if not have[1] then return { 'NONE' } end
local seq = tonumber(have[2] or 0)
if have[1] ~= token or have[3] ~= subject or last_seq > seq then return { 'DENIED' } end
local first = redis.call('XRANGE', outbox, '-', '+', 'COUNT', 1)[1]
local lowest = first and tonumber(string.match(first[1], '^(%d+)')) or seq + 1
if last_seq + 1 < lowest then return { 'TOO_OLD' } end
local epoch = redis.call('HINCRBY', state, 'epoch', 1)
local before = redis.call('GET', owner) or ''
redis.call('SET', owner, instance, 'PX', owner_ttl)
redis.call('PEXPIRE', state, ttl)
redis.call('PEXPIRE', outbox, ttl)
local missed = {}
for i, entry in ipairs(redis.call('XRANGE', outbox, string.format('%.0f-0', last_seq + 1), '+')) do
    missed[i] = entry[2][2]
end
return { 'OK', tostring(epoch), before, redis.call('HGETALL', state), missed }
