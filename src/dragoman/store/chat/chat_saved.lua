-- These entries are rows: forget them, count them down, and mark their claims as saved.
--
-- KEYS  lease    string
--       to_save  stream
--       shard    hash
--       unsaved  hash
--       claims   keys    one for each entry
-- ARGV  holder   str   what the lease must say
--       group    str
--       entries  list  id, sender, serverMsgId of the row, …
--
-- Returns {'OK', n, …}: the numbers (from 1) of the entries whose sender asked again meanwhile; or {'FENCED'}.
if redis.call('GET', lease) ~= holder then return {'FENCED'} end
local told = {'OK'}
local saved = 0
for i, claim in ipairs(claims) do
  local id, sender, row = entries[i * 3 - 2], entries[i * 3 - 1], entries[i * 3]
  if redis.call('XACK', to_save, group, id) == 1 then
    redis.call('XDEL', to_save, id)
    saved = saved + 1
    if redis.call('HINCRBY', unsaved, sender, -1) <= 0 then redis.call('HDEL', unsaved, sender) end
    if redis.call('EXISTS', claim) == 1 then
      redis.call('HSET', claim, 'id', row, 'saved', '1')
      if redis.call('HDEL', claim, 'again') == 1 then told[#told + 1] = tostring(i) end
    end
  end
end
redis.call('HINCRBY', shard, 'backlog', -saved)
redis.call('HINCRBY', shard, 'saved', saved)
return told
