-- Take one attempt of those that a key has, by the rule of domain/limits/rates.py.
--
-- KEYS  full_at   string  ms at which all attempts are back
-- ARGV  interval  int     ms in which one attempt comes back
--       window    int     ms in which all of them do
--       now       now     '' = Redis TIME (only tests pass a number)
--
-- Returns 'OK', or 'WAIT' (none is left; this call took none).
local after = math.max(tonumber(redis.call('GET', full_at) or 0), now) + interval
if after - now > window then return 'WAIT' end
redis.call('SET', full_at, string.format('%.0f', after), 'PX', string.format('%.0f', after - now))
return 'OK'
