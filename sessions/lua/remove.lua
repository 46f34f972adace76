-- An exchange that had ended leaves the history.
-- KEYS: conversation hash, journal stream.
-- Answers 'ok', 'gone' (it had left before), 'followed' (the history goes on from it) or 'moved'.
local conversation, journal = KEYS[1], KEYS[2]
local turn_id, seq, message_id, reply_id, event = unpack(ARGV)
if redis.call('HGET', conversation, 'removed:' .. turn_id) == seq then return 'ok' end
if redis.call('HEXISTS', conversation, 'message:' .. message_id) == 0 then return 'gone' end
if redis.call('HEXISTS', conversation, 'children:' .. reply_id) == 1 then return 'followed' end
local facts = redis.call('HMGET', conversation, 'running', 'seq')
if facts[1] ~= '' then return 'followed' end
if tonumber(facts[2]) + 1 ~= tonumber(seq) then return 'moved' end

TAKE_OUT(conversation, message_id)
redis.call('HSET', conversation, 'seq', seq, 'removed:' .. turn_id, seq)
redis.call('XADD', journal, seq .. '-0', 'event', event)
return 'ok'
