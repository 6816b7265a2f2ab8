-- Claim a sender's clientMsgId and append its message, or tell what is known of it.
--
-- KEYS  claim     hash
--       accepted  stream
--       shard     hash
--       unsaved   hash
-- ARGV  id        str   serverMsgId, decimal
--       digest    str   of receiver and body
--       sender    str
--       share     int   unsaved messages this shard may have
--       ttl       int   ms the claim lives
--       fields    list  of the stream entry
--
-- Returns {'OK', backlog}, {'DUPLICATE', id}, {'SAVED', id} (a duplicate of a saved one), {'MISMATCH', id},
-- {'BUSY', backlog} or {'STALE_ID', last}: draw a higher one.
local held = redis.call('HMGET', claim, 'id', 'digest', 'saved')
if held[1] then
  if held[2] ~= digest then return {'MISMATCH', held[1]} end
  if held[3] then return {'SAVED', held[1]} end
  -- Whoever finishes the message looks at this; the claim must not lapse before.
  redis.call('HINCRBY', claim, 'again', 1)
  redis.call('PEXPIRE', claim, ttl)
  return {'DUPLICATE', held[1]}
end
local known = redis.call('HMGET', shard, 'last_id', 'backlog')
local backlog = tonumber(known[2] or 0)
if backlog >= share then return {'BUSY', tostring(backlog)} end
-- As text: a double cannot hold 63 bits.
local last = known[1] or ''
if #last > #id or (#last == #id and last >= id) then return {'STALE_ID', last} end
redis.call('HSET', claim, 'id', id, 'digest', digest)
redis.call('PEXPIRE', claim, ttl)
redis.call('XADD', accepted, '*', unpack(fields))
redis.call('HSET', shard, 'last_id', id, 'backlog', backlog + 1)
redis.call('HINCRBY', shard, 'accepted', 1)
redis.call('HINCRBY', unsaved, sender, 1)
return {'OK', tostring(backlog + 1)}
