-- Delete entries that are rows, count them down, and mark their claims as saved. An entry whose sender has repeated the
-- message since it was notified stays, so that the sender is notified again first.
--
-- KEYS  lease    string
--       to_save  stream
--       shard    hash
--       unsaved  hash
--       claims   keys    one for each entry
-- ARGV  holder   str   value that the lease must have
--       group    str
--       entries  list  id, sender, its serverMsgId, serverMsgId of the row, repeats that the sender was notified of, …
--
-- Returns {'OK', n, repeats, …}: the numbers (from 1) of the entries that stay, and the repeats of each; or {'FENCED'}.
if redis.call('GET', lease) ~= holder then return {'FENCED'} end
local stay = {'OK'}
local saved = 0
for i, claim in ipairs(claims) do
  local id, sender, own, row, notified = unpack(entries, i * 5 - 4, i * 5)
  local found = redis.call('HMGET', claim, 'id', 'saved', 'repeats')
  -- The claim may belong to a later message with this clientMsgId: that one will find the row itself.
  local mine = found[1] == own and not found[2]
  if mine and tonumber(found[3] or 0) > tonumber(notified) then
    stay[#stay + 1] = tostring(i)
    stay[#stay + 1] = found[3]
  elseif redis.call('XACK', to_save, group, id) == 1 then
    redis.call('XDEL', to_save, id)
    saved = saved + 1
    if redis.call('HINCRBY', unsaved, sender, -1) <= 0 then redis.call('HDEL', unsaved, sender) end
    if mine then redis.call('HSET', claim, 'id', row, 'saved', '1') end
    -- The row is of an earlier message, perhaps with another body.
    if mine and row ~= own then redis.call('HDEL', claim, 'digest') end
  end
end
if saved == 0 then return stay end -- Redis 6.2 cannot read the -0 that Lua would make of it
redis.call('HINCRBY', shard, 'backlog', -saved)
redis.call('HINCRBY', shard, 'saved', saved)
return stay
