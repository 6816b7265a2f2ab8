-- Delete the messages of a session that its client has received.
--
-- KEYS  state     hash
--       outbox    stream
-- ARGV  epoch     str
--       last_seq  int   the last message that the client has
--       ttl       int   ms
--
-- Returns how many were deleted, or 'FENCED' (another instance owns the session, or it ended).
if redis.call('HGET', state, 'epoch') ~= epoch then return 'FENCED' end
local gone = redis.call('XRANGE', outbox, '-', string.format('%.0f-0', last_seq))
local bytes = 0
for _, entry in ipairs(gone) do
    redis.call('XDEL', outbox, entry[1])
    bytes = bytes + #entry[2][2]
end
if bytes > 0 then redis.call('HINCRBY', state, 'outbox_bytes', -bytes) end
redis.call('PEXPIRE', state, ttl)
redis.call('PEXPIRE', outbox, ttl)
return #gone
