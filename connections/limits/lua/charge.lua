-- Counts tokens for today, which ends at midnight, UTC. KEYS: the count. ARGV: how many more.
local time = redis.call('TIME')
redis.call('INCRBY', KEYS[1], ARGV[1])
redis.call('EXPIREAT', KEYS[1], (math.floor(time[1] / 86400) + 1) * 86400)
