-- Delete entries that are rows, count them down, and mark their claims as saved. An entry whose sender has repeated the
-- message since it was notified stays, so that the sender is notified again first.
--
-- KEYS  lease    string
--       stream   stream
--       shard    hash
--       unsaved  hash
--       claims   keys    one for each entry
-- ARGV  holder   str   value that the lease must have
--       entries  list  id, sender, its serverMsgId, serverMsgId of the row, repeats that the sender was notified of, …
--
-- Returns {'OK', n, repeats, …}: the numbers (from 1) of the entries that stay, and the repeats of each; or {'FENCED'}.
if redis.call('GET', lease) ~= holder then return {'FENCED'} end
local stay, ids, done = {'OK'}, {}, {}
for i, claim in ipairs(claims) do
  local id, sender, own, row, notified = unpack(entries, i * 5 - 4, i * 5)
  local found = redis.call('HMGET', claim, 'id', 'saved', 'repeats')
  -- The claim may belong to a later message with this clientMsgId: that one will find the row itself.
  local mine = found[1] == own and not found[2]
  if mine and tonumber(found[3] or 0) > tonumber(notified) then
    stay[#stay + 1] = tostring(i)
    stay[#stay + 1] = found[3]
  else
    ids[#ids + 1] = id
    done[#done + 1] = {sender, mine and claim, own, row}
  end
end
if #ids == 0 then return stay end
local function is_there(id) return #redis.call('XRANGE', stream, id, id) == 1 end
if is_there(ids[1]) and is_there(ids[#ids]) then
  redis.call('XDEL', stream, unpack(ids)) -- one command for all of them
else -- an earlier call has done this, and its answer was lost
  local left = {}
  for i, id in ipairs(ids) do
    if redis.call('XDEL', stream, id) == 1 then left[#left + 1] = done[i] end
  end
  done = left
end
if #done == 0 then return stay end
local fewer, gone = {}, {}
for _, entry in ipairs(done) do
  local sender, claim, own, row = unpack(entry)
  fewer[sender] = (fewer[sender] or 0) + 1
  if claim then redis.call('HSET', claim, 'saved', '1') end
  if claim and row ~= own then -- the row is of an earlier message, perhaps with another body
    redis.call('HSET', claim, 'id', row)
    redis.call('HDEL', claim, 'digest')
  end
end
for sender, count in pairs(fewer) do
  if tonumber(redis.call('HGET', unsaved, sender) or 0) > count then
    redis.call('HINCRBY', unsaved, sender, -count)
  else
    gone[#gone + 1] = sender
  end
end
if #gone > 0 then redis.call('HDEL', unsaved, unpack(gone)) end
redis.call('HINCRBY', shard, 'backlog', -#done)
redis.call('HINCRBY', shard, 'saved', #done)
return stay
