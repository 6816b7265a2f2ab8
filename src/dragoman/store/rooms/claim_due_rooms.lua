-- Take the rooms whose visit is due. If the caller does not schedule them, others find them due when the claim ends.
--
-- KEYS  due        zset  rooms by their next visit, ms
--       announced  zset  rooms by the time until which something may be written that no visit has seen, ms
-- ARGV  limit      int
--       claim      int   ms
--       now        now   '' = Redis TIME (only tests pass a number)
--
-- Returns {the end of the claim in ms, rooms}.
local rooms = redis.call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, limit)
for _, room in ipairs(rooms) do
    redis.call('ZADD', due, now + claim, room)
    local at = redis.call('ZSCORE', announced, room)
    if at and tonumber(at) <= now then redis.call('ZREM', announced, room) end
end
return {now + claim, rooms}
