-- Append a caption, or that an utterance was lost, and plan the languages that are heard. Once for each caption id, but for
-- an utterance that was noted as lost and is recognised after all, by the instance where its session was resumed.
--
-- USES  room_log
-- ARGV  caption  str
--       session  str  of the speaker
--       epoch    int  of the session
--       kind     str  original or lost
--       lang     str  spoken
--       text     str
--       about    str  JSON
--
-- Returns {'OK', seq, ms, 1 if it was appended before, planned languages, instances}; of a caption that was appended before
-- the languages that are still pending. A language is {lang, n, 1 if a member wants its voice}. Or 'NONE', 'NOT_MEMBER',
-- 'FENCED' (the session joined with a higher epoch) or 'PAUSED'. A session that has left may still have lost something.
local row, planned = redis.call('HGET', captions, caption), {}
row = row and cjson.decode(row)
if row and not (row.kind == 'lost' and kind == 'original') then
    for name, state in pairs(row.langs) do
        if state.s == 'pending' then
            planned[#planned + 1] = {name, state.n, redis.call('HEXISTS', counts, 'v:' .. name)}
        end
    end
    table.sort(planned, function(one, other) return one[1] < other[1] end)
    return {'OK', row.seq, now, 1, planned, counted('i:')}
end
local member = redis.call('HGET', members, session)
if not member and kind ~= 'lost' then return 'NOT_MEMBER' end
if member and epoch < cjson.decode(member).epoch then return 'FENCED' end
if redis.call('HGET', info, 'paused') == '1' then return 'PAUSED' end
row = {seq = append(kind, caption, lang, text, about), lang = lang, kind = kind, langs = {}}
for _, heard in ipairs(kind == 'original' and counted('h:') or {}) do
    if heard ~= lang then planned[#planned + 1] = plan(row, caption, heard) end
end
write(caption, row)
redis.call('RPUSH', recent, row.seq)
redis.call('LTRIM', recent, -1000, -1)
trim()
renew()
return {'OK', row.seq, now, 0, planned, counted('i:')}
