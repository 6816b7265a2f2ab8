-- Set the next visit of a room after a visit. A visitor that has lost its claim can only bring it forward.
--
-- KEYS  due        zset  rooms by their next visit, ms
--       announced  zset  rooms by the time until which something may be written that no visit has seen, ms
-- ARGV  room       str
--       after      int   ms
--       claimed    int   the end of the caller's claim in ms; 0 = none
--       now        now   '' = Redis TIME (only tests pass a number)
--
-- Returns 'OK' or 'NONE' (the room is not in the index).
local score = tonumber(redis.call('ZSCORE', due, room) or nil)
if not score then return 'NONE' end
local at = math.min(now + after, tonumber(redis.call('ZSCORE', announced, room) or now + after))
if score == claimed or at < score then redis.call('ZADD', due, at, room) end
return 'OK'
