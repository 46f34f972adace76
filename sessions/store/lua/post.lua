-- A message enters a replica's box, with the store's time: nobody compares clocks of their own.
-- KEYS: the box. ARGV: the replica, the message (a JSON object), how long a box is kept that nobody empties (ms).
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('PEXPIRE', KEYS[1], ARGV[3]) -- first, so that a full store takes the rest, too
redis.call('RPUSH', KEYS[1], string.format('{"at_ms":%.0f,', now) .. string.sub(ARGV[2], 2))
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PUBLISH', 'ms:to:' .. ARGV[1], 'mail')
