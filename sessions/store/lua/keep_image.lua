-- An image enters a hash, which ends after a while.
-- KEYS: the hash. ARGV: digest, the image, seconds, '1' where the hash lives so long from now on, else '0': as long as it did.
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
if ARGV[4] == '1' or redis.call('PTTL', KEYS[1]) < 0 then redis.call('EXPIRE', KEYS[1], ARGV[3]) end
return 'ok'
