-- The client has everything up to a message: it need not be kept.
--
-- KEYS  state     hash
--       outbox    stream
-- ARGV  epoch     str
--       last_seq  int
--       ttl       int   ms
--
-- Returns how many were freed, or 'FENCED'.
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
