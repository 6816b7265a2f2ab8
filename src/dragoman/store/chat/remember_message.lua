-- Claim the clientMsgId of a message that was saved without being accepted first, so that a repetition is recognised
-- and later ids of the shard are higher.
--
-- KEYS  claim   hash
--       shard   hash
-- ARGV  id      str   serverMsgId, decimal
--       to      str   receiver
--       digest  str   of the body
--       ttl     int   ms
--
-- Returns 'OK' or 'KNOWN' (there is a claim already).

-- Compared as text: a double cannot hold 63 bits.
local last = redis.call('HGET', shard, 'last_id') or ''
if #last < #id or (#last == #id and last < id) then redis.call('HSET', shard, 'last_id', id) end
if redis.call('EXISTS', claim) == 1 then return 'KNOWN' end
redis.call('HSET', claim, 'id', id, 'to', to, 'digest', digest, 'saved', '1')
redis.call('PEXPIRE', claim, ttl)
return 'OK'
