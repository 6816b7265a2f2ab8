-- Claim a sender's clientMsgId and append its message to `accepted`, or answer what is known of an earlier one.
--
-- KEYS  claim     hash    id, to, digest, saved, repeats
--       accepted  stream
--       shard     hash
--       unsaved   hash    unsaved messages of each sender
--       spent     string  bytes that the sender stored in its day
-- ARGV  id        str   serverMsgId, decimal
--       to        str   receiver
--       digest    str   of the body
--       sender    str
--       share     int   unsaved messages this shard may have
--       ttl       int   ms, of the claim
--       size      int   bytes of the message
--       quota     int   bytes that the sender may store in a day; 0 = any number
--       day       int   ms after which the bytes count no more
--       fields    list  of the stream entry
--
-- Returns {'OK', backlog}, {'DUPLICATE', id} (accepted before), {'SAVED', id} (accepted before, and saved),
-- {'DUPLICATE_OTHER', id} or {'SAVED_OTHER', id} (the same with another body, or one that is not known),
-- {'MISMATCH', id} (another receiver), {'OVER', bytes of the day} (the quota is used up), {'BUSY', backlog} or
-- {'STALE_ID', last id of the shard} (draw a higher one).
local first = redis.call('HMGET', claim, 'id', 'to', 'digest', 'saved')
if first[1] then
  if first[2] ~= to then return {'MISMATCH', first[1]} end
  local other = first[3] ~= digest and '_OTHER' or ''
  if first[4] then return {'SAVED' .. other, first[1]} end
  -- The stage that finishes the message reads this; the claim must not expire before.
  redis.call('HINCRBY', claim, 'repeats', 1)
  redis.call('PEXPIRE', claim, ttl)
  return {'DUPLICATE' .. other, first[1]}
end
if quota > 0 then
  local used = tonumber(redis.call('GET', spent) or 0)
  if used + size > quota then return {'OVER', tostring(used)} end
end
local known = redis.call('HMGET', shard, 'last_id', 'backlog', 'accepted')
local backlog = tonumber(known[2] or 0)
if backlog >= share then return {'BUSY', tostring(backlog)} end
-- Compared as text: a double cannot hold 63 bits.
local last = known[1] or ''
if #last > #id or (#last == #id and last >= id) then return {'STALE_ID', last} end
redis.call('HSET', claim, 'id', id, 'to', to, 'digest', digest)
redis.call('PEXPIRE', claim, ttl)
redis.call('XADD', accepted, '*', unpack(fields))
redis.call('HSET', shard, 'last_id', id, 'backlog', backlog + 1, 'accepted', (known[3] or 0) + 1)
redis.call('HINCRBY', unsaved, sender, 1)
if quota > 0 and redis.call('INCRBY', spent, size) == size then redis.call('PEXPIRE', spent, day) end
return {'OK', tostring(backlog + 1)}
