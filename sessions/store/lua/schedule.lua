-- A conversation is to be looked at in a while, unless it is listed already and nobody looks at it now.
-- KEYS: sorted set. ARGV: conversation, milliseconds, how many milliseconds the list outlives its last change.
-- A score is a time of the store's; that of a conversation which somebody looks at ends with a half.
local score = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]))
redis.call('PEXPIRE', KEYS[1], ARGV[3])
if score and score == math.floor(score) then return 0 end
local time = redis.call('TIME')
redis.call('ZADD', KEYS[1], string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[2]), ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
