-- A message that will never be a row becomes a dead letter, or is dropped where its sender is at fault; its sender may
-- try anew. One whose sender has asked again since it was told stays, to be told again first.
--
-- KEYS  lease    string
--       source   stream  where it is now
--       dead     stream
--       shard    hash
--       unsaved  hash
--       claim    hash
-- ARGV  holder   str   what the lease must say
--       group    str
--       entry    str
--       sender   str
--       id       str   serverMsgId
--       reason   str
--       tries    int
--       keep     int   1: as a dead letter
--       heard    int   how often the sender has asked again, as the holder knows
--       now      now
--
-- Returns {'OK'}, {'GONE'} (it was dealt with before), {'ASKED', how often by now} or {'FENCED'}.
if redis.call('GET', lease) ~= holder then return {'FENCED'} end
local found = redis.call('XRANGE', source, entry, entry)[1]
if not found then
  redis.call('XACK', source, group, entry)
  return {'GONE'}
end
local held = redis.call('HMGET', claim, 'id', 'again')
local mine = held[1] == id
if mine and tonumber(held[2] or 0) > heard then return {'ASKED', held[2]} end
if keep == 1 then
  local fields = found[2]
  for _, more in ipairs({'deadReason', reason, 'tries', tries, 'deadMs', string.format('%.0f', now)}) do
    fields[#fields + 1] = more
  end
  redis.call('XADD', dead, '*', unpack(fields))
end
redis.call('XACK', source, group, entry)
redis.call('XDEL', source, entry)
if mine then redis.call('DEL', claim) end
if redis.call('HINCRBY', unsaved, sender, -1) <= 0 then redis.call('HDEL', unsaved, sender) end
redis.call('HINCRBY', shard, 'backlog', -1)
redis.call('HINCRBY', shard, 'dead', 1)
return {'OK'}
