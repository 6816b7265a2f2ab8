-- Renew the slots that jobs of one driver have on one node. An expired slot is not renewed: another job may have it.
--
-- KEYS  reserved  zset  job ids by expiry, ms
-- ARGV  now       now
--       ttl       int   ms
--       jobs      list
--
-- Returns the jobs that have no slot any more.
redis.call('ZREMRANGEBYSCORE', reserved, '-inf', now)
local lost = {}
for _, job in ipairs(jobs) do
    if redis.call('ZSCORE', reserved, job) then
        redis.call('ZADD', reserved, now + ttl, job)
    else
        lost[#lost + 1] = job
    end
end
if #lost < #jobs and redis.call('PTTL', reserved) < ttl then redis.call('PEXPIRE', reserved, ttl) end
return lost
