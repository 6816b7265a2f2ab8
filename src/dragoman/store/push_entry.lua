-- Append an entry to the inbox of an instance. A full inbox refuses: inboxes are never trimmed.
--
-- KEYS  opened     string  exists while the inbox has a reader, or is taken over
--       inbox      stream
--       counts     hash
-- ARGV  maxlen     int     entries
--       max_bytes  int
--       size       int     bytes of data
--       kind       str
--       trace      str
--       data       str
--
-- Returns 'OK <id of the entry>', 'GONE' (the inbox is closed) or 'FULL'.
if redis.call('EXISTS', opened) == 0 then return 'GONE' end
if redis.call('XLEN', inbox) >= maxlen then return 'FULL' end
local bytes = tonumber(redis.call('HGET', counts, 'bytes') or 0)
if bytes + size > max_bytes then return 'FULL' end
local id = redis.call('XADD', inbox, '*', 'v', '1', 'type', kind, 'trace_id', trace, 'size', size, 'data', data)
redis.call('HINCRBY', counts, 'added', 1)
redis.call('HINCRBY', counts, 'bytes', size)
return 'OK ' .. id
