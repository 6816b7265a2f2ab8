-- Pause a node that failed several jobs in a row, by the rule of domain/storm.py.
--
-- KEYS  storm     hash  'paused' until, ms; 'pauses' in a row; the fields of report_unavailable
-- ARGV  first_ms  int   the first pause
--       ttl_ms    int   the longest pause, and how long after a pause its length is remembered
--       now       now
--
-- Returns the length of the pause in ms, or 0 if the node is paused already.
local paused = tonumber(redis.call('HGET', storm, 'paused') or 0)
local pauses = tonumber(redis.call('HGET', storm, 'pauses') or 0)
if now < paused then return 0 end
if now - paused >= ttl_ms then pauses = 0 end
local pause = math.min(first_ms * 2 ^ math.min(pauses, 16), ttl_ms)
redis.call('HSET', storm, 'paused', string.format('%.0f', now + pause), 'pauses', pauses + 1)
if redis.call('PTTL', storm) < pause + ttl_ms then redis.call('PEXPIRE', storm, pause + ttl_ms) end
return pause
