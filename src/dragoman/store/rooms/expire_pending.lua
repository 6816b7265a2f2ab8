-- End the languages whose translation is overdue, at most `limit` of them, and answer when to visit the room again.
--
-- USES  room_log
-- ARGV  limit  int
--
-- Returns {'OK', ms, entries as {seq, caption, lang}, instances, ms until the next visit, 'empty', 'idle' or ''} or 'NONE'.
local expired = {}
for _, name in ipairs(redis.call('ZRANGEBYSCORE', pending, '-inf', now, 'LIMIT', 0, limit)) do
    local lang, caption = name:match('^(.-)|(.*)$')
    local row = cjson.decode(redis.call('HGET', captions, caption))
    expired[#expired + 1] = {finish(row, caption, lang, 'untranslated', 'timeout'), caption, lang}
end
trim()
renew()
local why, left = over()
local first = redis.call('ZRANGE', pending, 0, 0, 'WITHSCORES')
-- A room may become empty at any moment, and nothing else brings its next visit forward.
left = math.min(left, persistent and idle_ms or empty_grace_ms, first[2] and first[2] - now or left)
return {'OK', now, expired, counted('i:'), math.max(left, 0), why}
