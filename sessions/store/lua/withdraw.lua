-- A turn leaves whose sender was told that it was not taken in: its message may be sent again under the same id.
-- KEYS: conversation hash, journal stream. ARGV: header, event.
-- `goes_on`: it went on with a reply, which stands as it did. The leaf that was active before is so again.
-- Answers 'ok', or 'gone' where it never came in, or left before.
local conversation, journal = KEYS[1], KEYS[2]
local asked, event = cjson.decode(ARGV[1]), ARGV[2]
local facts = redis.call('HMGET', conversation, 'running', 'seq', 'messages')
if facts[1] ~= asked.turn_id then return 'gone' end
if NUMBER(facts[2], 'seq') + 1 ~= asked.seq then return 'gone' end
NUMBER(facts[3] or 0, 'messages')
CLEAR_WAY(journal, asked.seq)

redis.call('XADD', journal, string.format('%d-0', asked.seq), 'event', event)
WITH_LEAF_BEFORE(conversation, asked.turn_id, asked.message_id, asked.reply_id, function()
  if not asked.goes_on then TAKE_OUT(conversation, asked.message_id, asked.reply_id) end
end)
redis.call('HDEL', conversation, 'sent:' .. asked.client_msg_id, 'turn:' .. asked.turn_id)
redis.call('HSET', conversation, 'running', '', 'seq', asked.seq)
LINK_REMOVAL(conversation, asked.turn_id, asked.seq)
NOTE_DUE(conversation, asked.seq)
redis.call('PEXPIRE', journal, asked.ttl)
TELL(conversation, asked.replica, 'event', event)
return 'ok'
