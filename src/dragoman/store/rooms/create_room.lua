-- Create a room without members.
--
-- KEYS  info    hash
-- ARGV  now     now   '' = Redis TIME (only tests pass a number)
--       ttl     int   ms
--       fields  list  names and values: code, tenant, creator, settings, log_epoch, persistent, locked
--
-- Returns 'OK' or 'EXISTS' (open or closed).
if redis.call('EXISTS', info) == 1 then return 'EXISTS' end
redis.call('HSET', info, 'created_ms', now, 'empty_since_ms', now, 'active_ms', now, 'seq', 0, 'joins', 0, 'version', 0,
    'paused', 0, 'closed', '', unpack(fields))
redis.call('PEXPIRE', info, ttl)
return 'OK'
