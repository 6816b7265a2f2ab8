-- Forget receipts that are in the database now; one that has risen meanwhile is kept.
--
-- KEYS  early    hash
-- ARGV  written  list  serverMsgId, status, …
--
-- Returns how many were forgotten.
local gone = 0
for i = 1, #written, 2 do
  if redis.call('HGET', early, written[i]) == written[i + 1] then gone = gone + redis.call('HDEL', early, written[i]) end
end
return gone
