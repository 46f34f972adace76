-- The caller looks at conversations whose time has come; whoever asks meanwhile gets others. Where it dies, another
-- one gets them when the lease is over.
-- A full store takes this, too: a script whose first write needs no memory may finish.
-- KEYS: sorted set. ARGV: how many at most, lease in milliseconds.
-- Answers {lease, conversation, ...}.
redis.call('ZREM', KEYS[1], '')
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local lease = string.format('%d.5', now + ARGV[2])
local taken = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%d', now), 'LIMIT', 0, ARGV[1])
for _, conversation in ipairs(taken) do redis.call('ZADD', KEYS[1], lease, conversation) end
table.insert(taken, 1, lease)
return taken
