-- Stores a small value for a while, or a member of a set. A full store takes this, too: a script whose first write needs no memory
-- may finish.
-- KEYS: its key. ARGV: value, milliseconds; without these, the member.
if ARGV[2] then
  redis.call('UNLINK', KEYS[1])
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
else
  redis.call('SREM', KEYS[1], '')
  redis.call('SADD', KEYS[1], ARGV[1])
end
