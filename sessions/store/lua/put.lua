-- Stores a small value for a while. A full store takes this, too: a script whose first write needs no memory may finish.
-- KEYS: its key. ARGV: value, milliseconds.
redis.call('UNLINK', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
