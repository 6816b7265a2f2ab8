-- Move entries from the deliver stage to the save stage.
--
-- KEYS  lease     string
--       accepted  stream
--       to_save   stream
-- ARGV  holder    str   value that the lease must have
--       group     str
--       now       now
--       entries   list  id, connection it was pushed to ('' = none), whether a push was tried (1 or 0), …
--
-- Returns {'OK', how many were moved} or {'FENCED'}.
if redis.call('GET', lease) ~= holder then return {'FENCED'} end
local moved = 0
for i = 1, #entries, 3 do
  local found = redis.call('XRANGE', accepted, entries[i], entries[i])[1]
  if found then
    local fields = found[2]
    if entries[i + 2] == '1' then
      fields[#fields + 1] = 'deliveredAttemptTs'
      fields[#fields + 1] = string.format('%.0f', now)
    end
    fields[#fields + 1] = 'pushedTo'
    fields[#fields + 1] = entries[i + 1]
    redis.call('XADD', to_save, '*', unpack(fields))
    moved = moved + 1
  end
  redis.call('XACK', accepted, group, entries[i])
  redis.call('XDEL', accepted, entries[i])
end
return {'OK', moved}
