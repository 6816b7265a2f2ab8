-- Drop the dead letters of a shard that are too old or too many, the oldest first, and count them.
--
-- KEYS  dead   stream
--       shard  hash
-- ARGV  most   int   letters to keep
--       age    int   ms that a letter is kept
--       now    now
--
-- Returns how many were dropped.
local dropped = redis.call('XTRIM', dead, 'MINID', string.format('%.0f', math.max(now - age, 0)))
dropped = dropped + redis.call('XTRIM', dead, 'MAXLEN', most)
if dropped > 0 then redis.call('HINCRBY', shard, 'dropped', dropped) end
return dropped
