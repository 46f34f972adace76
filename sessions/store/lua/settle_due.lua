-- The caller has looked at a conversation, which leaves the list, or is to be looked at again in a while.
-- KEYS: sorted set. ARGV: conversation, the caller's lease, milliseconds or 0.
-- Where the score is not the lease any more, a turn ended meanwhile: then it stays as it is.
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not score or tonumber(score) ~= tonumber(ARGV[2]) then return 0 end
local removed = redis.call('ZREM', KEYS[1], ARGV[1]) -- first, so that a full store takes the rest, too
if ARGV[3] == '0' then return removed end
local time = redis.call('TIME')
redis.call('ZADD', KEYS[1], string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[3]), ARGV[1])
return 1
