-- A turn leaves whose sender was told that it was not taken in: its message may be sent again under the same id.
-- KEYS: conversation hash, journal stream.
-- Answers 'ok', or 'gone' where it never came in, or left before.
local conversation, journal = KEYS[1], KEYS[2]
local turn_id, client_msg_id, message_id, reply_id, seq, event, replica = unpack(ARGV)
local facts = redis.call('HMGET', conversation, 'running', 'seq')
if facts[1] ~= turn_id then return 'gone' end
if tonumber(facts[2]) + 1 ~= tonumber(seq) then return 'gone' end

TAKE_OUT(conversation, message_id, reply_id)
redis.call('HDEL', conversation, 'sent:' .. client_msg_id, 'turn:' .. turn_id)
redis.call('HSET', conversation, 'running', '', 'seq', seq)
redis.call('XADD', journal, seq .. '-0', 'event', event)
TELL(conversation, replica, 'event', event)
return 'ok'
