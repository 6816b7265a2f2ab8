-- Delete the dead letters of a shard that are too old or too many, the oldest first, and count them.
--
-- KEYS  dead         stream
--       shard        hash
-- ARGV  max_letters  int
--       max_age      int   ms
--       now          now
--
-- Returns how many were deleted.
local dropped = redis.call('XTRIM', dead, 'MINID', string.format('%.0f', math.max(now - max_age, 0)))
dropped = dropped + redis.call('XTRIM', dead, 'MAXLEN', max_letters)
if dropped > 0 then redis.call('HINCRBY', shard, 'dropped', dropped) end
return dropped
