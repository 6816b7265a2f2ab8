-- Create the state of a session that can resume. One step, so that there is never a state without a TTL.
--
-- KEYS  state    hash
-- ARGV  token    str   hash of the resume token
--       subject  str   principal that owns the session
--       ttl      int   ms
--       fields   list  name, value, …
--
-- Returns 'OK'.
redis.call('HSET', state, 'v', '1', 'epoch', '1', 'token', token, 'subject', subject, 'seq', '0', unpack(fields))
redis.call('PEXPIRE', state, ttl)
return 'OK'
