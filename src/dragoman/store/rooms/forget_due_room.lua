-- Delete a room from the index. A room that was just announced stays: it may be created at this moment.
--
-- KEYS  due        zset  rooms by their next visit, ms
--       announced  zset  rooms by the time until which something may be written that no visit has seen, ms
-- ARGV  room       str
--       now        now   '' = Redis TIME (only tests pass a number)
--
-- Returns 'OK' or 'ANNOUNCED'.
local at = redis.call('ZSCORE', announced, room)
if at and tonumber(at) > now then
    redis.call('ZADD', due, at, room)
    return 'ANNOUNCED'
end
redis.call('ZREM', due, room)
redis.call('ZREM', announced, room)
return 'OK'
