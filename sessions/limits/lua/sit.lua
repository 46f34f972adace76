-- Counts a connection where everything that it counts for has room for one more.
-- KEYS: sets of connections: for each subject this replica's set, then those of other replicas that live.
-- ARGV: connection, how long a set is kept without a word (ms), then for each subject: how many sets, and its limit.
-- Answers 0, or the number of the first subject that is full, and changes nothing then. Repeating it changes nothing.
local connection, ttl = ARGV[1], ARGV[2]
local at, own = 1, {}
for subject = 1, (#ARGV - 2) / 2 do
  local sets, limit = tonumber(ARGV[2 * subject + 1]), tonumber(ARGV[2 * subject + 2])
  local taken = -redis.call('SISMEMBER', KEYS[at], connection)
  for number = at, at + sets - 1 do taken = taken + redis.call('SCARD', KEYS[number]) end
  if taken >= limit then return subject end
  own[subject], at = KEYS[at], at + sets
end
for _, key in ipairs(own) do
  redis.call('SADD', key, connection)
  redis.call('PEXPIRE', key, ttl)
end
return 0
