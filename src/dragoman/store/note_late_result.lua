-- Record that a result arrived for a job that had ended without one: it was skipped, failed or expired.
--
-- KEYS  job   hash
-- ARGV  node  str  that sent the result
--       now   now
--
-- Returns 'LATE', or 'NO': the job is not known, has not ended, had its result, or ended with its session.
local have = redis.call('HMGET', job, 'outcome', 'code')
local outcome = have[1]
if outcome ~= 'failed' and outcome ~= 'expired' and not (outcome == 'cancelled' and have[2] == 'SKIPPED') then
    return 'NO'
end
if redis.call('HSETNX', job, 'late_ms', string.format('%.0f', now)) == 1 then
    redis.call('HSET', job, 'late_node_id', node)
end
return 'LATE'
