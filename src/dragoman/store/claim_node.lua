-- Own the connection of a node, under a connection epoch above every earlier one.
--
-- KEYS  owner     string
--       epoch     string
--       named     string  exists while the id belongs to a node that showed a token
-- ARGV  instance  str
--       ttl       int   ms, of owner and named
--       epoch_ttl int   ms
--       standing  str   token, anonymous, or unasked: no node has to show a token
--       now       now
--
-- Returns the epoch, or 'TAKEN': an anonymous node does not get the id of a node with a token.
if standing == 'anonymous' and redis.call('EXISTS', named) == 1 then
    return 'TAKEN'
end
local last = tonumber(redis.call('GET', epoch) or 0)
-- Redis' time and never below the last one: rising even when the key was lost or the clock stepped back.
local fresh = string.format('%.0f', math.max(last + 1, now))
redis.call('SET', epoch, fresh, 'PX', epoch_ttl)
redis.call('SET', owner, instance, 'PX', ttl)
if standing == 'token' then
    redis.call('SET', named, instance, 'PX', ttl)
end
return fresh
