-- Take the receipts kept for messages that are rows now.
--
-- KEYS  early  hash
-- ARGV  ids    list  serverMsgIds
--
-- Returns serverMsgId, status, … of those there were.
local found = {}
if redis.call('EXISTS', early) == 0 then return found end
for _, id in ipairs(ids) do
  local status = redis.call('HGET', early, id)
  if status then
    found[#found + 1] = id
    found[#found + 1] = status
    redis.call('HDEL', early, id)
  end
end
return found
