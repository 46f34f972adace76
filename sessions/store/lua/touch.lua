-- Puts a conversation at the head of its owner's list, by the store's clock: replicas' clocks may differ.
-- KEYS: the list. ARGV: conversation, how long a list is kept that nobody adds to (ms).
local time = redis.call('TIME')
redis.call('ZADD', KEYS[1], time[1] * 1000 + math.floor(time[2] / 1000), ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
