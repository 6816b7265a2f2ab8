-- Keep the slots that jobs of one driver hold on one node. What has expired is not revived: it may be sold.
--
-- KEYS  reserved  zset
-- ARGV  now       now
--       ttl       int   ms
--       jobs      list
--
-- Returns the jobs that hold no slot any more.
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
