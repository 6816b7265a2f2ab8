-- Move an entry that could not be handled to the dead letters, with the reason and the times.
--
-- KEYS  inbox       stream
--       dlq         stream
--       counts      hash
-- ARGV  group       str
--       id          str
--       maxlen      int   dead letters
--       reason      str
--       deliveries  int
--       now         now
--
-- Returns 'OK', 'FULL' (the entry stays pending: dead letters are not trimmed) or 'NONE' (there is no such entry).
local found = redis.call('XRANGE', inbox, id, id)
if #found == 0 then
    redis.call('XACK', inbox, group, id)
    return 'NONE'
end
if redis.call('XLEN', dlq) >= maxlen then return 'FULL' end
local fields, size = found[1][2], 0
for i = 1, #fields, 2 do
    if fields[i] == 'size' then size = tonumber(string.match(fields[i + 1], '^%d+$') or 0) end
end
local added_ms = string.match(id, '^(%d+)')
for _, extra in ipairs({ 'entry_id', id, 'reason', reason, 'deliveries', deliveries,
                         'added_ms', added_ms, 'dead_ms', string.format('%.0f', now) }) do
    fields[#fields + 1] = extra
end
redis.call('XADD', dlq, '*', unpack(fields))
redis.call('XACK', inbox, group, id)
redis.call('XDEL', inbox, id)
redis.call('HINCRBY', counts, 'dead', 1)
redis.call('HINCRBY', counts, 'bytes', 0 - size)  -- 6.2 does not read the -0 of Lua
return 'OK'
