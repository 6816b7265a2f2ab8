-- Take one of so many tries a minute; the rule is that of domain/chat/allowances.py.
--
-- KEYS  full_at   string  ms at which all tries are back
-- ARGV  interval  int     ms in which one try comes back
--       window    int     ms in which all of them do
--       now       now     '' = Redis TIME (only tests pass a number)
--
-- Returns 'OK', or 'WAIT': none is left, and this one cost nothing.
local after = math.max(tonumber(redis.call('GET', full_at) or 0), now) + interval
if after - now > window then return 'WAIT' end
redis.call('SET', full_at, string.format('%.0f', after), 'PX', string.format('%.0f', after - now))
return 'OK'
