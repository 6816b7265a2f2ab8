-- Give the next entries of a stage to the holder of the shard, and to nobody else: what an overtaken holder read
-- would stay pending, and what comes after it would overtake it.
--
-- KEYS  lease     string
--       stream    stream
-- ARGV  holder    str   what the lease must say
--       group     str
--       consumer  str
--       after     str   '>' for new ones, an id for those given before and not done
--       count     int
--
-- Returns {'OK', entries}, {'NONE', newest}: nothing, wait for what is newer than that; or {'FENCED'}.
if redis.call('GET', lease) ~= holder then return {'FENCED'} end
local found = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', count, 'STREAMS', stream, after)
if found and #found[1][2] > 0 then return {'OK', found[1][2]} end
local newest = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
return {'NONE', newest and newest[1] or '0'}
