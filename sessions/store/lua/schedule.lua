-- A conversation is to be looked at in a while: a turn of it has ended, or the caller has looked at it.
-- KEYS: sorted set. ARGV: conversation, milliseconds (0 of a caller that has looked: it leaves the list), how many milliseconds the list outlives its last
-- change, the lease of a caller that has looked.
-- A score is a time of the store's; that of a conversation which somebody looks at is their lease, which ends with a half. A turn
-- changes nothing where the conversation waits in the list. A caller changes nothing where a turn ended meanwhile.
local score = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]))
redis.call('PEXPIRE', KEYS[1], ARGV[3]) -- first, so that a full store takes the rest, too
if ARGV[4] then
  if score ~= tonumber(ARGV[4]) then return end
elseif score and score == math.floor(score) then
  return
end
if ARGV[4] and ARGV[2] == '0' then
  redis.call('ZREM', KEYS[1], ARGV[1])
  return
end
local time = redis.call('TIME')
redis.call('ZADD', KEYS[1], string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[2]), ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
