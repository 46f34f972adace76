-- Counts tokens for today, which ends at midnight, UTC; a charge that was counted before counts nothing.
-- KEYS: the count, the last charge of each replica. ARGV: how many more, the replica, the charge's number, one more each time.
if tonumber(redis.call('HGET', KEYS[2], ARGV[2]) or 0) >= tonumber(ARGV[3]) then return end
local time = redis.call('TIME')
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
redis.call('EXPIRE', KEYS[2], 86400)
redis.call('INCRBY', KEYS[1], ARGV[1])
redis.call('EXPIREAT', KEYS[1], (math.floor(time[1] / 86400) + 1) * 86400)
