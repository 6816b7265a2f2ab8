-- Record that an instance drives a job, so that a takeover of the instance finds the job. An instance that was declared
-- dead must not record a job any more: the takeover would not find it.
--
-- KEYS  opened       string  incarnation that reads the inbox, or the mark of its takeover
--       driven       zset    job ids by deadline, ms
-- ARGV  incarnation  str     of the driver
--       job          str
--       deadline     int     ms
--
-- Returns 'OK' or 'DECLARED_DEAD'.
if redis.call('GET', opened) ~= incarnation then return 'DECLARED_DEAD' end
redis.call('ZADD', driven, string.format('%.0f', deadline), job)
return 'OK'
