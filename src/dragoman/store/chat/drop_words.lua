-- Forget frames that a user was told; what was left for it meanwhile is kept.
--
-- KEYS  words  list
-- ARGV  told   list  frames
--
-- Returns how many were forgotten.
local gone = 0
for _, frame in ipairs(told) do gone = gone + redis.call('LREM', words, 1, frame) end
return gone
