-- What a conversation's journal has of turns that ended a window ago leaves it: the hash has it too.
-- KEYS: conversation hash, journal stream. ARGV: window in milliseconds.
-- Answers after how many milliseconds there is more to do; 0: nothing is left, or there is no such conversation.
local conversation, journal = KEYS[1], KEYS[2]
local facts = redis.call('HMGET', conversation, 'seq', 'due')
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local over, later = nil, {}
for seq, at in string.gmatch(facts[2] or '', '(%d+) (%d+)') do
  if at + ARGV[1] <= now then over = tonumber(seq) else later[#later + 1] = {seq .. ' ' .. at, at + ARGV[1] - now} end
end
if over then
  if over >= tonumber(facts[1]) or redis.call('TYPE', journal).ok ~= 'stream' then
    redis.call('UNLINK', journal)
  else
    redis.call('XTRIM', journal, 'MINID', string.format('%d-0', over + 1))
  end
  if later[1] then
    redis.call('HSET', conversation, 'due', later[1][1])
  else
    redis.call('HDEL', conversation, 'due')
  end
end
return later[1] and later[1][2] or 0
