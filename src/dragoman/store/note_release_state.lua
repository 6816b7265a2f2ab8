-- Record how the release window of a session settled the index of a job.
--
-- KEYS  job    hash
-- ARGV  state  str
--
-- Returns 'OK', or 'UNKNOWN': there is no such job, and none is created.
if redis.call('EXISTS', job) == 0 then return 'UNKNOWN' end
redis.call('HSET', job, 'release_state', state)
return 'OK'
