-- What a conversation's journal has of turns that ended a window ago leaves it: the hash has it too.
-- KEYS: conversation hash, journal stream. ARGV: window in milliseconds.
-- Answers after how many milliseconds there is more to do; 0: nothing is left, or there is no such conversation.
local conversation, journal = KEYS[1], KEYS[2]
local facts = redis.call('HMGET', conversation, 'seq', 'due')
local seq, at, rest = string.match(facts[2] or '', '^(%d+) (%d+) ?(.*)$')
if not seq then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local left = at + ARGV[1] - now
if left > 0 then return left end

if tonumber(seq) >= tonumber(facts[1]) or redis.call('TYPE', journal).ok ~= 'stream' then
  redis.call('UNLINK', journal)
else
  redis.call('XTRIM', journal, 'MINID', string.format('%d-0', seq + 1))
end
if rest == '' then
  redis.call('HDEL', conversation, 'due')
  return 0
end
redis.call('HSET', conversation, 'due', rest)
return math.max(1, tonumber(string.match(rest, ' (%d+)$')) + ARGV[1] - now)
