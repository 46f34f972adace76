-- Reads the messages in a box, and takes out those that were read before: a repeated call takes and misses nothing.
-- KEYS: the box. ARGV: how many at most, how many were read before, the SHA-1 of the last of those.
-- Answers {the store's time (ms), messages}.
local box, at_most, read, last = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
if read > 0 then
  local message = redis.call('LINDEX', box, read - 1)
  if message and redis.sha1hex(message) == last then redis.call('LPOP', box, read) end
end
local time = redis.call('TIME')
return {time[1] * 1000 + math.floor(time[2] / 1000), redis.call('LRANGE', box, 0, at_most - 1)}
