-- Write how the release window of a job's session settled its index.
--
-- KEYS  job    hash
-- ARGV  state  str
--
-- Returns 'OK', or 'UNKNOWN': there is no such job, and none is made.
if redis.call('EXISTS', job) == 0 then return 'UNKNOWN' end
redis.call('HSET', job, 'release_state', state)
return 'OK'
