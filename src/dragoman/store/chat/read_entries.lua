-- Read the next entries of a stage, as the holder of the shard. Any other reader would leave them pending, and later
-- entries would overtake them.
--
-- KEYS  lease     string
--       stream    stream
-- ARGV  holder    str   value that the lease must have
--       group     str
--       consumer  str
--       after     str   '>' for new entries, an id for pending ones after it
--       count     int
--
-- Returns {'OK', entries}, {'NONE', id of the newest entry} (wait for a newer one) or {'FENCED'}.
if redis.call('GET', lease) ~= holder then return {'FENCED'} end
local found = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', count, 'STREAMS', stream, after)
if found and #found[1][2] > 0 then return {'OK', found[1][2]} end
local newest = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
return {'NONE', newest and newest[1] or '0'}
