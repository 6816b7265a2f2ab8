-- These entries are rows: forget them, count them down, and mark their claims as saved. One whose sender has asked
-- again since it was told stays, to be told again first.
--
-- KEYS  lease    string
--       to_save  stream
--       shard    hash
--       unsaved  hash
--       claims   keys    one for each entry
-- ARGV  holder   str   what the lease must say
--       group    str
--       entries  list  id, sender, its serverMsgId, serverMsgId of the row, how often the sender asked again, …
--
-- Returns {'OK', n, asked, …}: the numbers (from 1) of the entries that stay, and how often their senders have asked
-- by now; or {'FENCED'}.
if redis.call('GET', lease) ~= holder then return {'FENCED'} end
local stay = {'OK'}
local saved = 0
for i, claim in ipairs(claims) do
  local id, sender, own, row, heard = unpack(entries, i * 5 - 4, i * 5)
  local held = redis.call('HMGET', claim, 'id', 'saved', 'again')
  -- The claim may be of a later try, perhaps with another body: that one meets the row itself.
  local mine = held[1] == own and not held[2]
  if mine and tonumber(held[3] or 0) > tonumber(heard) then
    stay[#stay + 1] = tostring(i)
    stay[#stay + 1] = held[3]
  elseif redis.call('XACK', to_save, group, id) == 1 then
    redis.call('XDEL', to_save, id)
    saved = saved + 1
    if redis.call('HINCRBY', unsaved, sender, -1) <= 0 then redis.call('HDEL', unsaved, sender) end
    if mine then redis.call('HSET', claim, 'id', row, 'saved', '1') end
    -- The row is that of an earlier message, perhaps with another body.
    if mine and row ~= own then redis.call('HDEL', claim, 'digest') end
  end
end
if saved == 0 then return stay end -- Redis 6.2 does not take the -0 Lua would make of it
redis.call('HINCRBY', shard, 'backlog', -saved)
redis.call('HINCRBY', shard, 'saved', saved)
return stay
