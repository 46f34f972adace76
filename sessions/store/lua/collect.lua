-- Takes letters out of a box. KEYS: the box. ARGV: how many at most.
-- Answers {the store's time (ms), letters}.
local time = redis.call('TIME')
return {time[1] * 1000 + math.floor(time[2] / 1000), redis.call('LPOP', KEYS[1], ARGV[1]) or {}}
