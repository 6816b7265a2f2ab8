-- Claim a sender's clientMsgId and append its message, or tell what is known of it.
--
-- KEYS  claim     hash
--       accepted  stream
--       shard     hash
--       unsaved   hash
--       spent     string  bytes of the sender's day
-- ARGV  id        str   serverMsgId, decimal
--       to        str   receiver
--       digest    str   of the body
--       sender    str
--       share     int   unsaved messages this shard may have
--       ttl       int   ms the claim lives
--       size      int   bytes that the message costs
--       quota     int   bytes that the sender may store in a day; 0: any number
--       day       int   ms that they count
--       fields    list  of the stream entry
--
-- Returns {'OK', backlog}, {'DUPLICATE', id}, {'SAVED', id} (a duplicate of a saved one), {'DUPLICATE_OTHER', id} or
-- {'SAVED_OTHER', id} (the same with another body, or one that is not known), {'MISMATCH', id} (another receiver),
-- {'OVER', bytes of the day} (the quota is used up), {'BUSY', backlog} or {'STALE_ID', last}: draw a higher one.
local held = redis.call('HMGET', claim, 'id', 'to', 'digest', 'saved')
if held[1] then
  if held[2] ~= to then return {'MISMATCH', held[1]} end
  local other = held[3] ~= digest and '_OTHER' or ''
  if held[4] then return {'SAVED' .. other, held[1]} end
  -- Whoever finishes the message looks at this; the claim must not lapse before.
  redis.call('HINCRBY', claim, 'again', 1)
  redis.call('PEXPIRE', claim, ttl)
  return {'DUPLICATE' .. other, held[1]}
end
if quota > 0 then
  local used = tonumber(redis.call('GET', spent) or 0)
  if used + size > quota then return {'OVER', tostring(used)} end
end
local known = redis.call('HMGET', shard, 'last_id', 'backlog')
local backlog = tonumber(known[2] or 0)
if backlog >= share then return {'BUSY', tostring(backlog)} end
-- As text: a double cannot hold 63 bits.
local last = known[1] or ''
if #last > #id or (#last == #id and last >= id) then return {'STALE_ID', last} end
redis.call('HSET', claim, 'id', id, 'to', to, 'digest', digest)
redis.call('PEXPIRE', claim, ttl)
redis.call('XADD', accepted, '*', unpack(fields))
redis.call('HSET', shard, 'last_id', id, 'backlog', backlog + 1)
redis.call('HINCRBY', shard, 'accepted', 1)
redis.call('HINCRBY', unsaved, sender, 1)
if quota > 0 and redis.call('INCRBY', spent, size) == size then redis.call('PEXPIRE', spent, day) end
return {'OK', tostring(backlog + 1)}
