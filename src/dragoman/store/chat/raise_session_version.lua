-- Raise the session version of a user, which ends the sessions of all earlier tokens. The TTL never gets shorter.
--
-- KEYS  version  string
-- ARGV  ttl      int  ms after which all earlier tokens have expired
--
-- Returns the new version.
local raised = redis.call('INCR', version)
redis.call('PEXPIRE', version, math.max(redis.call('PTTL', version), ttl))
return raised
