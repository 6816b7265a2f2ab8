-- Delete receipts that are in the database. A receipt whose status has risen meanwhile stays.
--
-- KEYS  early    hash  serverMsgId → status
-- ARGV  written  list  serverMsgId, status, …
--
-- Returns how many were deleted.
local deleted = 0
for i = 1, #written, 2 do
  if redis.call('HGET', early, written[i]) == written[i + 1] then
    deleted = deleted + redis.call('HDEL', early, written[i])
  end
end
return deleted
