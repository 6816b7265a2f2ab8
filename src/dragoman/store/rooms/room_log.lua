-- What the scripts share that append to the log of a room.
--
-- USES  room
--
-- Returns nothing: the script that uses it returns.
local function append(kind, caption, lang, text, about)
    local seq = redis.call('HINCRBY', info, 'seq', 1)
    redis.call('XADD', log, seq .. '-' .. string.format('%.0f', now), 'k', kind, 'c', caption, 'l', lang, 't', text, 'a', about)
    redis.call('HSET', info, 'active_ms', now, 'appended_ms', now)
    return seq
end

local function write(caption, row)
    redis.call('HSET', captions, caption, cjson.encode(row))
end

-- The language is pending from now on. The caller writes the row.
local function plan(row, caption, lang)
    local n = (row.langs[lang] and row.langs[lang].n or 0) + 1
    row.langs[lang] = {n = n, s = 'pending', seq = 0}
    redis.call('ZADD', pending, now + translate_timeout_ms, lang .. '|' .. caption)
    return {lang, n, redis.call('HEXISTS', counts, 'v:' .. lang)}
end

-- The end of a pending language.
local function finish(row, caption, lang, kind, text)
    local seq = append(kind, caption, lang, text, '')
    row.langs[lang].s = kind == 'translation' and 'done' or 'untranslated'
    row.langs[lang].seq = seq
    write(caption, row)
    redis.call('ZREM', pending, lang .. '|' .. caption)
    return seq
end

-- Delete the oldest entries above the bound, and with a caption its row and what is pending of it. It is the last step
-- of a script: the row of a caption that the script changes may be among them.
local function trim()
    while redis.call('XLEN', log) > max_entries do
        local oldest = redis.call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
        redis.call('XDEL', log, oldest[1])
        local kind, caption = oldest[2][2], oldest[2][4]
        if kind == 'original' or kind == 'lost' then
            local seq, row = oldest[1]:match('^%d+'), cjson.decode(redis.call('HGET', captions, caption))
            -- An utterance that was noted as lost may have a later entry.
            if row.seq == tonumber(seq) then
                for lang in pairs(row.langs) do
                    redis.call('ZREM', pending, lang .. '|' .. caption)
                end
                redis.call('HDEL', captions, caption)
            end
            if redis.call('LINDEX', recent, 0) == seq then redis.call('LPOP', recent) end
        end
    end
end
