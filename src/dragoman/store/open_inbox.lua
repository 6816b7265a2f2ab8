-- Open the inbox of an instance for one incarnation of it, and create the consumer group.
--
-- KEYS  opened       string  incarnation
--       inbox        stream
-- ARGV  incarnation  str
--       group        str
--
-- Returns 'OK', or the incarnation (or takeover mark) that has the inbox.
local holder = redis.call('GET', opened)
if holder and holder ~= incarnation then return holder end
redis.call('SET', opened, incarnation)
-- From 0, not from $: what was pushed before the group existed must be read too.
local made = redis.pcall('XGROUP', 'CREATE', inbox, group, '0', 'MKSTREAM')
if made.err and not string.find(made.err, 'BUSYGROUP') then return made end
return 'OK'
