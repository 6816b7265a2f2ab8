-- Append the end of a planned language: the translation, or that there is none. Only if it is still pending.
--
-- USES  room_log
-- ARGV  caption  str
--       lang     str
--       n        int  how often the language was planned
--       kind     str  translation or untranslated
--       text     str  the translation, or the reason
--
-- Returns {'OK', seq, ms, instances}, 'NONE' or 'LATE' (the language has its end, or was planned anew).
local found = redis.call('HGET', captions, caption)
local row = found and cjson.decode(found)
local state = row and row.langs[lang]
if not state or state.s ~= 'pending' or state.n ~= n then return 'LATE' end
local seq = finish(row, caption, lang, kind, text)
trim()
renew()
return {'OK', seq, now, counted('i:')}
