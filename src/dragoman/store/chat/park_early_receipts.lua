-- Keep receipts for messages that are not rows yet; the higher status of a message counts.
--
-- KEYS  early         hash  serverMsgId → status
-- ARGV  max_receipts  int   of one user
--       ttl           int   ms
--       receipts      list  serverMsgId, status, …
--
-- Returns how many were kept.
local kept = 0
for i = 1, #receipts, 2 do
  local before = tonumber(redis.call('HGET', early, receipts[i]) or -1)
  if before >= 0 or redis.call('HLEN', early) < max_receipts then
    if tonumber(receipts[i + 1]) > before then redis.call('HSET', early, receipts[i], receipts[i + 1]) end
    kept = kept + 1
  end
end
redis.call('PEXPIRE', early, ttl)
return kept
