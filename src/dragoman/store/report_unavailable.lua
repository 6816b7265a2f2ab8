-- Count that a node answered MODEL_NOT_AVAILABLE for a service, by the rule of domain/storm.py.
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
local recent, marked = {}, nil
local have = redis.call('HGETALL', storm)
for i = 1, #have, 2 do
    local name, value = have[i], have[i + 1]
    if name == 'recent' then
        for at in string.gmatch(value, '%d+') do
            if now - tonumber(at) < window_ms then recent[#recent + 1] = at end
        end
    elseif string.sub(name, 1, 2) == 'm:' then
        -- Each report renews the TTL of the key, so a mark must expire by itself: a node can name ever new services.
        if now - tonumber(value) >= ttl_ms then
            redis.call('HDEL', storm, name)
        elseif name == 'm:' .. service then
            marked = tonumber(value)
        end
    end
end
recent[#recent + 1] = string.format('%.0f', now)
local verdict = 'MARKED'
if #recent > limit then
    table.remove(recent, 1)
    redis.call('HSET', storm, 'whole', string.format('%.0f', now + ttl_ms))
    verdict = 'RATE_LIMITED'
elseif marked and now - marked < debounce_ms then
    verdict = 'DEBOUNCED'
else
    redis.call('HSET', storm, 'm:' .. service, string.format('%.0f', now))
end
redis.call('HSET', storm, 'recent', table.concat(recent, ' '))
-- A pause may have set a longer TTL.
if redis.call('PTTL', storm) < ttl_ms then redis.call('PEXPIRE', storm, ttl_ms) end
return verdict
