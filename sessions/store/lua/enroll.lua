-- Adds a replica to the set of those that may run turns; a full store takes this, too, as `put.lua`.
-- KEYS: the set. ARGV: replica.
redis.call('SREM', KEYS[1], '')
redis.call('SADD', KEYS[1], ARGV[1])
