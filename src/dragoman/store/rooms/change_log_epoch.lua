-- Give the log of a room another epoch, because entries are lost that members have received.
--
-- USES  room
-- ARGV  known  str  the epoch that the caller knows
--       epoch  str  the new one
--
-- Returns {'OK', log epoch, version, instances}; the epoch is another one if somebody else was first. Or 'NONE'.
if redis.call('HGET', info, 'log_epoch') == known then
    redis.call('HSET', info, 'log_epoch', epoch)
    redis.call('HINCRBY', info, 'version', 1)
    renew()
end
local found = redis.call('HMGET', info, 'log_epoch', 'version')
return {'OK', found[1], tonumber(found[2]), counted('i:')}
