-- A node said MODEL_NOT_AVAILABLE for a service; the rule is that of domain/storm.py.
--
-- KEYS  storm        hash  'm:<service>' ms of the mark, 'recent' ms of late reports, 'whole' until, ms
-- ARGV  service      str
--       debounce_ms  int
--       ttl_ms       int
--       limit        int   reports in the window before the whole node cools down
--       window_ms    int
--       now          now
--
-- Returns 'MARKED', 'DEBOUNCED' or 'RATE_LIMITED'.
local recent = {}
for at in string.gmatch(redis.call('HGET', storm, 'recent') or '', '%d+') do
    if now - tonumber(at) < window_ms then recent[#recent + 1] = at end
end
recent[#recent + 1] = string.format('%.0f', now)
local verdict = 'MARKED'
if #recent > limit then
    table.remove(recent, 1)
    redis.call('HSET', storm, 'whole', string.format('%.0f', now + ttl_ms))
    verdict = 'RATE_LIMITED'
else
    local marked = tonumber(redis.call('HGET', storm, 'm:' .. service))
    if marked and now - marked < debounce_ms then
        verdict = 'DEBOUNCED'
    else
        redis.call('HSET', storm, 'm:' .. service, string.format('%.0f', now))
    end
end
redis.call('HSET', storm, 'recent', table.concat(recent, ' '))
-- The key outlives every mark in it by its own TTL, so a mark may stay until then: at most `limit` a window.
redis.call('PEXPIRE', storm, ttl_ms)
return verdict
