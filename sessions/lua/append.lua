-- Events of the running turn enter the journal, each once, in order.
-- KEYS: conversation hash, journal stream. ARGV: turn id, then seq and event, pairwise.
-- Answers 'ok' or 'lost' (the turn is no longer the caller's).
local conversation, journal = KEYS[1], KEYS[2]
local facts = redis.call('HMGET', conversation, 'running', 'seq')
if facts[1] ~= ARGV[1] then return 'lost' end
local seq = tonumber(facts[2])
for i = 2, #ARGV, 2 do
  local next_seq = tonumber(ARGV[i])
  if next_seq > seq then
    if next_seq ~= seq + 1 then return 'lost' end
    redis.call('XADD', journal, ARGV[i] .. '-0', 'event', ARGV[i + 1])
    seq = next_seq
  end
end
redis.call('HSET', conversation, 'seq', seq)
return 'ok'
