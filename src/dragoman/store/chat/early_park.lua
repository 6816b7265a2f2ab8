-- Keep receipts for messages that are not rows yet.
--
-- KEYS  early  hash
-- ARGV  most   int   receipts kept for one user
--       ttl    int   ms
--       given  list  serverMsgId, status, …
--
-- Returns how many were kept.
local kept = 0
for i = 1, #given, 2 do
  local before = tonumber(redis.call('HGET', early, given[i]) or -1)
  if before >= 0 or redis.call('HLEN', early) < most then
    if tonumber(given[i + 1]) > before then redis.call('HSET', early, given[i], given[i + 1]) end
    kept = kept + 1
  end
end
redis.call('PEXPIRE', early, ttl)
return kept
