-- Acknowledge and delete entries of an inbox, and count each once.
--
-- KEYS  inbox    stream
--       counts   hash
-- ARGV  group    str
--       entries  list  id, size, id, size …
--
-- Returns how many were deleted by this call.
local done, bytes = 0, 0
for i = 1, #entries, 2 do
    redis.call('XACK', inbox, group, entries[i])
    if redis.call('XDEL', inbox, entries[i]) == 1 then
        done = done + 1
        bytes = bytes + tonumber(entries[i + 1])
    end
end
if done > 0 then
    redis.call('HINCRBY', counts, 'done', done)
    redis.call('HINCRBY', counts, 'bytes', 0 - bytes)  -- 6.2 does not read the -0 of Lua
end
return done
