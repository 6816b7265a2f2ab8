-- Record a job: CREATED, or DISPATCHED at once if its node is known. One call, so that no node has a job that is not
-- recorded.
--
-- KEYS  job     hash
-- ARGV  node    str   '' = none found yet
--       epoch   str   connection epoch of the node
--       ttl     int   ms
--       now     now
--       fields  list  name, value, …: what never changes
--
-- Returns 'OK', 'ALREADY', or 'ENDED': its driver was declared dead before this call, and a takeover ended the job. The
-- fields are written all the same.
local state = redis.call('HGET', job, 'state')
if state == 'FINISHED' or state == 'RELEASED' then
    for i = 1, #fields, 2 do redis.call('HSETNX', job, fields[i], fields[i + 1]) end
    return 'ENDED'
end
if state then return 'ALREADY' end
local at = string.format('%.0f', now)
redis.call('HSET', job, 'v', '1', 'state', 'CREATED', 'attempt', '1', 'created_ms', at, unpack(fields))
if node ~= '' then
    redis.call('HSET', job, 'state', 'DISPATCHED', 'node_id', node, 'node_epoch', epoch, 'dispatched_ms', at)
end
redis.call('PEXPIRE', job, ttl)
return 'OK'
