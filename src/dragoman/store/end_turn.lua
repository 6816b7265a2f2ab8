-- A turn is over: its session no longer names it, unless a newer one is named already.
--
-- KEYS  session  hash
-- ARGV  turn     str
--
-- Returns 'OK' or 'OTHER'.
if redis.call('HGET', session, 'current_turn_id') ~= turn then return 'OTHER' end
redis.call('HDEL', session, 'current_turn_id')
return 'OK'
