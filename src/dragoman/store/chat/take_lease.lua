-- Take the lease of a shard that has no holder. Its fence is above every fence that Redis or SQL has seen.
--
-- KEYS  lease     string  '<instance>|<fence>'
--       shard     hash
-- ARGV  instance  str
--       fence     int  the highest in SQL
--       ttl       int  ms
--
-- Returns {'OK', fence} or {'HELD'} (the shard has a holder).
if redis.call('EXISTS', lease) == 1 then return {'HELD'} end
local highest = math.max(tonumber(redis.call('HGET', shard, 'fence') or 0), fence) + 1
redis.call('HSET', shard, 'fence', highest)
redis.call('SET', lease, instance .. '|' .. highest, 'PX', ttl)
return {'OK', highest}
