-- The list of revoked tokens and principals, if it has changed.
--
-- KEYS  entries   hash
--       version   string
-- ARGV  known     int     the version that the caller has
--
-- Returns the version, and the fields of the hash if it is another than `known`.
local current = tonumber(redis.call('GET', version) or 0)
if current == known then
    return {current}
end
return {current, redis.call('HGETALL', entries)}
