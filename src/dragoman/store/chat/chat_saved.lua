-- These entries are rows: forget them, count them down, and mark their claims as saved.
--
-- KEYS  lease    string
--       to_save  stream
--       shard    hash
--       unsaved  hash
--       claims   keys    one for each entry
-- ARGV  holder   str   what the lease must say
--       group    str
--       entries  list  id, sender, its serverMsgId, serverMsgId of the row, …
--
-- Returns {'OK', n, …}: the numbers (from 1) of the entries whose sender asked again meanwhile; or {'FENCED'}.
if redis.call('GET', lease) ~= holder then return {'FENCED'} end
local told = {'OK'}
local saved = 0
for i, claim in ipairs(claims) do
  local id, sender, own, row = entries[i * 4 - 3], entries[i * 4 - 2], entries[i * 4 - 1], entries[i * 4]
  if redis.call('XACK', to_save, group, id) == 1 then
    redis.call('XDEL', to_save, id)
    saved = saved + 1
    if redis.call('HINCRBY', unsaved, sender, -1) <= 0 then redis.call('HDEL', unsaved, sender) end
    -- The claim may be of a later try, perhaps with another body: that one meets the row itself.
    if redis.call('HGET', claim, 'id') == own then redis.call('HSET', claim, 'id', row, 'saved', '1') end
  end
  -- Also of what was done before: the answer to that may have been lost.
  local held = redis.call('HMGET', claim, 'id', 'saved', 'again')
  if held[1] == row and held[2] and held[3] then told[#told + 1] = tostring(i) end
end
if saved == 0 then return told end -- Redis 6.2 does not take the -0 Lua would make of it
redis.call('HINCRBY', shard, 'backlog', -saved)
redis.call('HINCRBY', shard, 'saved', saved)
return told
