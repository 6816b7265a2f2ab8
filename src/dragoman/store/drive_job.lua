-- Note that an instance drives a job, so that whoever buries it finds the job. One that is being buried, or was,
-- drives nothing any more: what it notes now nobody would find.
--
-- KEYS  opened       string  incarnation that reads the inbox, or the mark of its burial
--       driven       zset
-- ARGV  incarnation  str     of the driver
--       job          str
--       deadline     int     ms
--
-- Returns 'OK' or 'BURIED'.
if redis.call('GET', opened) ~= incarnation then return 'BURIED' end
redis.call('ZADD', driven, string.format('%.0f', deadline), job)
return 'OK'
