-- Write changes of a session's state and up to two messages for its client. Only the current owner may.
--
-- KEYS  state        hash    'epoch', 'seq', 'version', 'outbox_bytes' and the fields of the owner
--       outbox       stream  id = seq, field 'f' the frame
-- ARGV  epoch        str
--       ttl          int     ms
--       max_entries  int
--       max_bytes    int
--       seq          int     0 = no message
--       frame        str
--       second       str     the message seq + 1; '' = none
--       after        int     the message that must have been written before; 0 = any
--       base         int     the version of the state that these fields change; 0 = any
--       version      int     of the state with these fields; 0 = newer than any
--       whole        int     1 = these fields are the whole window: delete its other fields
--       gone         int     how many of the fields are names to delete; they come first
--       fields       list    names to delete, then name, value, …
--
-- Returns 'OK', 'FENCED' (another instance owns the session, or it ended) or 'EARLY' (`after` or `base` is missing).
local have = redis.call('HMGET', state, 'epoch', 'seq', 'version')
if have[1] ~= epoch then return 'FENCED' end
local last, known = tonumber(have[2] or 0), tonumber(have[3] or 0)
if after > last or base > known then return 'EARLY' end
-- A write sent on a closed connection to Redis may arrive after one sent on its successor.
if (#fields > 0 or whole == 1) and (version == 0 or version > known) then
    if whole == 1 then
        for _, name in ipairs(redis.call('HKEYS', state)) do
            if string.find(name, ':', 1, true) then redis.call('HDEL', state, name) end
        end
    end
    if gone > 0 then redis.call('HDEL', state, unpack(fields, 1, gone)) end
    if version > 0 then
        fields[#fields + 1] = 'version'
        fields[#fields + 1] = string.format('%.0f', version)
    end
    if #fields > gone then redis.call('HSET', state, unpack(fields, gone + 1)) end
end
-- A write that is repeated because its reply was lost adds no second message.
if seq > last then
    redis.call('XADD', outbox, string.format('%.0f-0', seq), 'f', frame)
    if second ~= '' then
        seq = seq + 1
        redis.call('XADD', outbox, string.format('%.0f-0', seq), 'f', second)
    end
    redis.call('HSET', state, 'seq', string.format('%.0f', seq))
    local bytes = redis.call('HINCRBY', state, 'outbox_bytes', #frame + #second)
    while redis.call('XLEN', outbox) > max_entries or bytes > max_bytes do
        local oldest = redis.call('XRANGE', outbox, '-', '+', 'COUNT', 1)[1]
        redis.call('XDEL', outbox, oldest[1])
        bytes = redis.call('HINCRBY', state, 'outbox_bytes', 0 - #oldest[2][2])  -- 6.2 does not read the -0 of Lua
    end
end
redis.call('PEXPIRE', state, ttl)
redis.call('PEXPIRE', outbox, ttl)
return 'OK'
