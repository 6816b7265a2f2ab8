-- Read the revocation list, if it has changed.
--
-- KEYS  entries   hash
--       version   string
-- ARGV  known     int     the version that the caller has
--
-- Returns {version}, or {version, fields of the hash} if the version is not `known`.
local current = tonumber(redis.call('GET', version) or 0)
if current == known then
    return {current}
end
return {current, redis.call('HGETALL', entries)}
