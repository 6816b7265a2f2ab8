-- Apply one event to a job, by the table of domain/job.py.
--
-- KEYS  job      hash
-- ARGV  event    str
--       attempt  str   '' = whichever is current
--       node     str   the node that sent the event, or (dispatch) that gets the job; '' = none
--       outcome  str
--       code     str   why the job, or (reassign) the attempt, ended
--       ttl      int   ms
--       now      now
--       fields   list  name, value, …: written if the event takes effect
--
-- Returns 'OK', 'ALREADY', 'STALE' (another attempt), 'WRONG_NODE', 'ILLEGAL' or 'UNKNOWN' (no such job).
local rank = { CREATED = 1, DISPATCHED = 2, ACCEPTED = 3, RUNNING = 4, FINISHED = 5, RELEASED = 6 }
local target = { dispatch = 'DISPATCHED', ack = 'ACCEPTED', start = 'RUNNING', result = 'FINISHED',
                 expire = 'FINISHED', cancel = 'FINISHED', give_up = 'FINISHED', release = 'RELEASED',
                 reassign = 'CREATED' }
local stamp = { DISPATCHED = 'dispatched_ms', ACCEPTED = 'acked_ms', RUNNING = 'started_ms',
                FINISHED = 'finished_ms', RELEASED = 'released_ms', CREATED = 'reassigned_ms' }
local function allowed(from)
    if event == 'dispatch' then return from == 'CREATED' end
    if event == 'ack' then return from == 'DISPATCHED' end
    if event == 'start' then return from == 'DISPATCHED' or from == 'ACCEPTED' end
    if event == 'release' then return from == 'FINISHED' end
    return rank[from] < rank.FINISHED
end

local have = redis.call('HMGET', job, 'state', 'attempt', 'node_id')
local state = have[1]
if not state then return 'UNKNOWN' end
if attempt ~= '' and attempt ~= have[2] then return 'STALE' end
local from_node = event == 'ack' or event == 'start' or event == 'result'
if from_node and node ~= '' and node ~= have[3] then return 'WRONG_NODE' end
local to = target[event]
if not allowed(state) then
    if event ~= 'reassign' and rank[to] <= rank[state] then return 'ALREADY' end
    return 'ILLEGAL'
end

redis.call('HSET', job, 'state', to, stamp[to], string.format('%.0f', now))
if event == 'dispatch' then redis.call('HSET', job, 'node_id', node) end
-- A node may send job_started without job_ack.
if event == 'start' then redis.call('HSETNX', job, 'acked_ms', string.format('%.0f', now)) end
if event == 'reassign' then
    local past = 'attempt_' .. have[2] .. '_'
    redis.call('HSET', job, past .. 'node_id', have[3] or '', past .. 'reason', code,
               past .. 'dispatched_ms', redis.call('HGET', job, 'dispatched_ms') or '',
               past .. 'ended_ms', string.format('%.0f', now))
    redis.call('HINCRBY', job, 'attempt', 1)
    -- The times of this attempt must not be read as those of the next.
    redis.call('HDEL', job, 'node_id', 'node_epoch', 'dispatched_ms', 'acked_ms', 'started_ms')
end
if to == 'FINISHED' then redis.call('HSET', job, 'outcome', outcome, 'code', code) end
if #fields > 0 then redis.call('HSET', job, unpack(fields)) end
redis.call('PEXPIRE', job, ttl)
return 'OK'
