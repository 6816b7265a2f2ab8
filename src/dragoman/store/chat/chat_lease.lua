-- Take the lease of a shard nobody holds. Its fence is above every fence Redis or SQL has seen.
--
-- KEYS  lease     string
--       shard     hash
-- ARGV  instance  str
--       fence     int  the highest SQL knows
--       ttl       int  ms
--
-- Returns the new fence, or 0 when somebody holds the shard.
if redis.call('EXISTS', lease) == 1 then return 0 end
local highest = math.max(tonumber(redis.call('HGET', shard, 'fence') or 0), fence) + 1
redis.call('HSET', shard, 'fence', highest)
redis.call('SET', lease, instance .. '|' .. highest, 'PX', ttl)
return highest
