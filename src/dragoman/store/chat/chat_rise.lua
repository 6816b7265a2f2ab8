-- Ids of this shard's senders go on above this one, wherever they are made.
--
-- KEYS  shard  hash
-- ARGV  id     str  serverMsgId, decimal
--
-- Returns the highest id of the shard.
-- As text: a double cannot hold 63 bits.
local last = redis.call('HGET', shard, 'last_id') or ''
if #last > #id or (#last == #id and last >= id) then return last end
redis.call('HSET', shard, 'last_id', id)
return id
