-- What the scripts share that change the members of a room. Only the members concerned are decoded.
--
-- USES  room
--
-- Returns nothing: the script that uses it returns.
local function read(session)
    local found = redis.call('HGET', members, session)
    return found and cjson.decode(found)
end

local function count(member, by)
    local fields = {'i:' .. member.instance}
    if member.role == 'host' then fields[#fields + 1] = 'r:host' end
    if member.hears ~= '' then fields[#fields + 1] = 'h:' .. member.hears end
    if member.hears ~= '' and member.voice then fields[#fields + 1] = 'v:' .. member.hears end
    for _, field in ipairs(fields) do
        if redis.call('HINCRBY', counts, field, by) == 0 then redis.call('HDEL', counts, field) end
    end
end

-- `before` becomes `after`; a new member has no before, a member that leaves has no after.
local function replace(session, before, after)
    if before then count(before, -1) end
    if after then
        count(after, 1)
        redis.call('HSET', members, session, cjson.encode(after))
    else
        redis.call('HDEL', members, session)
        redis.call('ZREM', seniority, session)
    end
end

-- Whether `after` does not add one language too many.
local function fits(before, after)
    if after.hears == '' or redis.call('HEXISTS', counts, 'h:' .. after.hears) == 1 then return true end
    local heard = #counted('h:')
    if before and redis.call('HGET', counts, 'h:' .. before.hears) == '1' then heard = heard - 1 end
    return heard < max_languages
end

-- Why this session may not act as host, or nil.
local function refuse_host(session, epoch)
    local member = read(session)
    if not member or member.role ~= 'host' then return 'NOT_HOST' end
    if epoch < member.epoch then return 'STALE' end
end

-- A listener that gets a role that speaks is ordered among the speakers.
local function set_role(session, role)
    local before, after = read(session), read(session)
    after.role = role
    replace(session, before, after)
    if before.role == 'listener' and not before.claimed then redis.call('ZINCRBY', seniority, -1e12, session) end
end
