-- Make later ids of the shard's senders higher than this one, whichever instance draws them.
--
-- KEYS  shard  hash
-- ARGV  id     str  serverMsgId, decimal
--
-- Returns the highest id of the shard.

-- Compared as text: a double cannot hold 63 bits.
local last = redis.call('HGET', shard, 'last_id') or ''
if #last > #id or (#last == #id and last >= id) then return last end
redis.call('HSET', shard, 'last_id', id)
return id
