-- Write down a session that can resume. One step: a state that were there without its TTL would be there for ever.
--
-- KEYS  state    hash
-- ARGV  token    str   hash of the resume token
--       subject  str   whose it is
--       ttl      int   ms
--       fields   list  name, value, …
--
-- Returns 'OK'.
redis.call('HSET', state, 'v', '1', 'epoch', '1', 'token', token, 'subject', subject, 'seq', '0', unpack(fields))
redis.call('PEXPIRE', state, ttl)
return 'OK'
