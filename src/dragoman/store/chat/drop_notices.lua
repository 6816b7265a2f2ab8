-- Delete notices that were sent to a user; later ones stay.
--
-- KEYS  notices  list
-- ARGV  sent   list  frames
--
-- Returns how many were deleted.
local gone = 0
for _, frame in ipairs(sent) do gone = gone + redis.call('LREM', notices, 1, frame) end
return gone
