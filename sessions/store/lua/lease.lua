-- Takes a lease. A full store takes this, too: a script whose first write needs no memory may finish.
-- KEYS: the lease. ARGV: its value, milliseconds.
redis.call('UNLINK', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
