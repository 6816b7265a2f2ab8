-- Take a session over for a client that can prove it is its own, and fence whoever had it.
--
-- KEYS  state      hash
--       owner      string
--       outbox     stream
-- ARGV  token      str   hash of the resume token
--       subject    str   who asks
--       last_seq   int   what the client has
--       instance   str
--       owner_ttl  int   ms
--       ttl        int   ms
--
-- Returns {'OK', epoch, owner before or '', state, what the client has not had}, all as of this epoch: read later they
-- could be those of the next. Or {'NONE'}, {'DENIED'}, {'TOO_OLD'} (what it needs is gone).
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
