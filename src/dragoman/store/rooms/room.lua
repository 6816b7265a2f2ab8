-- What the scripts of an open room share: its keys, its bounds, its instances, its life and its end.
--
-- KEYS  info        hash    code, settings, log_epoch, seq, joins, version, times, states
--       members     hash    JSON by session
--       seniority   zset    sessions by their order of becoming host
--       counts      hash    members by i:<instance>, h:<language heard>, v:<language wanted as voice>, r:host
--       log         stream  entries; the id is <seq>-<ms of the append>
--       captions    hash    JSON by caption: seq, lang, kind, and the state of each planned language
--       recent      list    seq of the last captions
--       pending     zset    <lang>|<caption> by deadline, ms
--       removed     set     principals that stay out
-- ARGV  now                   now  '' = Redis TIME (only tests pass a number)
--       max_members           int
--       max_languages         int  that are heard at the same time
--       max_entries           int  of the log
--       translate_timeout_ms  int
--       empty_grace_ms        int
--       idle_ms               int
--       transcript_ms         int
--       persistent_ms         int
--
-- Returns 'NONE' if the room does not exist or is closed; otherwise the script that uses it returns.
local state = redis.call('HMGET', info, 'closed', 'persistent')
if state[1] ~= '' then return 'NONE' end
local persistent = state[2] == '1'

-- The names that are counted under a prefix, sorted.
local function counted(prefix)
    local names = {}
    for _, field in ipairs(redis.call('HKEYS', counts)) do
        if field:sub(1, 2) == prefix then names[#names + 1] = field:sub(3) end
    end
    table.sort(names)
    return names
end

-- Give every key its life, new ones too. Not at every call, because each change goes to the replicas and to the disk.
local function renew()
    local ttl = persistent and persistent_ms or idle_ms + transcript_ms
    for _, key in ipairs({info, members, seniority, counts, log, captions, recent, pending, removed}) do
        local left = redis.call('PTTL', key)
        if left < 0.9 * ttl or left > ttl then redis.call('PEXPIRE', key, ttl) end
    end
end

-- Why the room is over, or '', and the ms until it will be.
local function over()
    local times, why = redis.call('HMGET', info, 'empty_since_ms', 'active_ms'), 'idle'
    local left = times[2] + (persistent and persistent_ms or idle_ms) - now
    if times[1] ~= '' and not persistent and times[1] + empty_grace_ms - now < left then
        left, why = times[1] + empty_grace_ms - now, 'empty'
    end
    return left <= 0 and why or '', left
end
