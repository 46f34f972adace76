-- A turn that was accepted behind another begins: it is the next in the queue, and nothing runs.
-- KEYS: conversation hash. ARGV: turn id, replica, system prompt, the message that the context begins with.
-- Answers 'ok', or 'lost' (it is not the next one any more).
local conversation = KEYS[1]
local turn_id, replica, system, context_from = unpack(ARGV)
local facts = redis.call('HMGET', conversation, 'running', 'queue')
if facts[1] == turn_id then return 'ok' end
if facts[1] ~= '' then return 'lost' end
local first, rest = string.match(facts[2] or '', '^(%S+)%s*(.*)$')
if first ~= turn_id then return 'lost' end
redis.call('HSET', conversation, 'running', turn_id, 'runner', replica, 'queue', rest)
if system then redis.call('HSET', conversation, 'system', system, 'context_from', context_from) end
return 'ok'
