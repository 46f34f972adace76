-- An image enters a hash, which ends after a while. Its field `bytes` says how much all of it takes.
-- KEYS: the hash. ARGV: digest, the image, seconds, '1' where the hash lives so long from now on, else '0': as long as it did;
-- how much the image counts.
-- Answers how much all of the hash takes.
if redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) == 1 then redis.call('HINCRBY', KEYS[1], 'bytes', ARGV[5]) end
if ARGV[4] == '1' or redis.call('PTTL', KEYS[1]) < 0 then redis.call('EXPIRE', KEYS[1], ARGV[3]) end
return tonumber(redis.call('HGET', KEYS[1], 'bytes') or 0)
