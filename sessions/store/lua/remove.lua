-- An exchange that had ended leaves the history.
-- KEYS: conversation hash, journal stream.
-- Answers 'ok', 'gone' (it had left before), 'followed' (the history goes on from it) or 'moved'.
local conversation, journal = KEYS[1], KEYS[2]
local turn_id, seq, message_id, reply_id, event, replica = unpack(ARGV)
if redis.call('HGET', conversation, 'removed:' .. turn_id) == seq then return 'ok' end
if redis.call('HEXISTS', conversation, 'message:' .. reply_id) == 0 then return 'gone' end
if redis.call('HEXISTS', conversation, 'children:' .. reply_id) == 1 then return 'followed' end
local facts = redis.call('HMGET', conversation, 'running', 'seq', 'queue')
if facts[1] ~= '' or (facts[3] and facts[3] ~= '') then return 'followed' end
if tonumber(facts[2]) + 1 ~= tonumber(seq) then return 'moved' end

TAKE_OUT(conversation, message_id, reply_id)
redis.call('HSET', conversation, 'seq', seq, 'removed:' .. turn_id, seq)
redis.call('XADD', journal, seq .. '-0', 'event', event)
TELL(conversation, replica, 'event', event)
return 'ok'
