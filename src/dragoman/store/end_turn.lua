-- Remove a turn that ended from its session, unless a newer turn is there.
--
-- KEYS  session  hash
-- ARGV  turn     str
--
-- Returns 'OK' or 'OTHER' (the session has another turn, or none).
if redis.call('HGET', session, 'current_turn_id') ~= turn then return 'OTHER' end
redis.call('HDEL', session, 'current_turn_id')
return 'OK'
