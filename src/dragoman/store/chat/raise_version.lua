-- Raise the session version of a user, so that all earlier tokens are over.
--
-- KEYS  version  string
-- ARGV  ttl      int  ms after which none of those tokens can be valid any more
--
-- Returns the new version. The time to live never gets shorter.
local raised = redis.call('INCR', version)
redis.call('PEXPIRE', version, math.max(redis.call('PTTL', version), ttl))
return raised
