-- What the journal has behind a seq.
-- KEYS: conversation hash, journal stream. ARGV: seq.
-- Answers nothing where there is no such conversation, else
-- {epoch, seq, running turn or '', its turn record or '', seq of the oldest event that is kept, events}.
local conversation, journal = KEYS[1], KEYS[2]
local facts = redis.call('HMGET', conversation, 'epoch', 'seq', 'running')
if not facts[1] then return false end
local running, record = facts[3] or '', ''
if running ~= '' then record = redis.call('HGET', conversation, 'turn:' .. running) or '' end
local oldest = redis.call('XRANGE', journal, '-', '+', 'COUNT', 1)[1]
local events = {}
for _, row in ipairs(redis.call('XRANGE', journal, '(' .. ARGV[1] .. '-0', '+')) do
  events[#events + 1] = row[2][2]
end
local first = oldest and tonumber(string.match(oldest[1], '^%d+')) or tonumber(facts[2]) + 1
return {facts[1], tonumber(facts[2]), running, record, first, events}
