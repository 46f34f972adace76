-- Images enter a hash, which ends after a while. Its field `bytes` says how much all of it takes.
-- KEYS: the hash. ARGV: seconds, '1' where the hash lives so long from now on, else '0': as long as it did; the group whose ledger
-- counts it; then for each image: digest, the image, how much it counts.
-- Answers what RECHARGE returns for the hash.
for at = 4, #ARGV, 3 do
  if redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1]) == 1 then redis.call('HINCRBY', KEYS[1], 'bytes', ARGV[at + 2]) end
end
if ARGV[2] == '1' or redis.call('PTTL', KEYS[1]) < 0 then redis.call('EXPIRE', KEYS[1], ARGV[1]) end
return {RECHARGE(KEYS[1], tonumber(redis.call('HGET', KEYS[1], 'bytes') or 0), redis.call('PTTL', KEYS[1]), ARGV[3])}
