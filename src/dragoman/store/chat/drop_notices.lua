-- Delete notices that were sent to their user; later ones stay.
--
-- KEYS  notices  list
-- ARGV  sent     list  frames
--
-- Returns how many were deleted.
local deleted = 0
for _, frame in ipairs(sent) do deleted = deleted + redis.call('LREM', notices, 1, frame) end
return deleted
