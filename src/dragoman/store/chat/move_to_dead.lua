-- Move a message that will never be a row to the dead letters, or drop it, and free its claim. A message that its
-- sender has repeated since it was notified stays, so that the sender is notified again first.
--
-- KEYS  lease     string
--       source    stream  accepted or to_save
--       dead      stream
--       shard     hash
--       unsaved   hash
--       claim     hash
-- ARGV  holder    str   value that the lease must have
--       entry     str
--       sender    str
--       id        str   serverMsgId
--       reason    str
--       tries     int
--       keep      int   1 = as a dead letter, 0 = drop it
--       notified  int   repeats that the sender was notified of
--       now       now
--
-- Returns {'OK'}, {'GONE'} (there is no such entry any more), {'REPEATED', repeats} or {'FENCED'}.
if redis.call('GET', lease) ~= holder then return {'FENCED'} end
local found = redis.call('XRANGE', source, entry, entry)[1]
if not found then return {'GONE'} end
local found_claim = redis.call('HMGET', claim, 'id', 'repeats')
local mine = found_claim[1] == id
if mine and tonumber(found_claim[2] or 0) > notified then return {'REPEATED', found_claim[2]} end
if keep == 1 then
  local fields = found[2]
  for _, more in ipairs({'deadReason', reason, 'tries', tries, 'deadMs', string.format('%.0f', now)}) do
    fields[#fields + 1] = more
  end
  redis.call('XADD', dead, '*', unpack(fields))
end
redis.call('XDEL', source, entry)
if mine then redis.call('DEL', claim) end
if redis.call('HINCRBY', unsaved, sender, -1) <= 0 then redis.call('HDEL', unsaved, sender) end
redis.call('HINCRBY', shard, 'backlog', -1)
redis.call('HINCRBY', shard, 'dead', 1)
return {'OK'}
