-- Delete everything of a session, unless another instance owns it.
--
-- KEYS  state   hash
--       outbox  stream
--       parked  list
-- ARGV  epoch   str
--
-- Returns 'OK' or 'FENCED'.
local have = redis.call('HGET', state, 'epoch')
if have and have ~= epoch then return 'FENCED' end
redis.call('DEL', state, outbox, parked)
return 'OK'
