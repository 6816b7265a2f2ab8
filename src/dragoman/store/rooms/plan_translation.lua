-- Plan a language of a caption anew: one that has no translation, or that nobody heard when it was said.
--
-- USES  room_log
-- ARGV  caption  str
--       lang     str
--
-- Returns {'OK', lang, n, 1 if a member wants its voice}, {'DONE', seq} (it is translated), 'PENDING', 'NONE' (no such
-- caption, or in that language already) or 'LANGUAGES' (too many were planned).
local found = redis.call('HGET', captions, caption)
if not found then return 'NONE' end
local row, planned = cjson.decode(found), 0
if row.kind ~= 'original' or row.lang == lang then return 'NONE' end
local state = row.langs[lang]
if state and state.s == 'pending' then return 'PENDING' end
if state and state.s == 'done' then return {'DONE', state.seq} end
for _ in pairs(row.langs) do planned = planned + 1 end
if not state and planned >= max_languages then return 'LANGUAGES' end
local new = plan(row, caption, lang)
write(caption, row)
renew()
return {'OK', new[1], new[2], new[3]}
