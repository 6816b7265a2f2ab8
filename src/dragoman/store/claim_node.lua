-- A node's socket is here: own it, under a connection epoch above every earlier one.
--
-- KEYS  owner     string
--       epoch     string
-- ARGV  instance  str
--       ttl       int   ms, of the owner
--       epoch_ttl int   ms
--       now       now
--
-- Returns the epoch.
local last = tonumber(redis.call('GET', epoch) or 0)
-- Redis' time and never below the last one: rising even when the key was lost or the clock stepped back.
local fresh = string.format('%.0f', math.max(last + 1, now))
redis.call('SET', epoch, fresh, 'PX', epoch_ttl)
redis.call('SET', owner, instance, 'PX', ttl)
return fresh
