-- A turn begins, once per client_msg_id: its message enters the history, or is there already (the payload is '' then).
-- KEYS: conversation hash, journal stream. ARGV: header, message, turn record, event.
-- `continues`: the sender asked for the active leaf, which `parent_id` must still be.
-- `titled_by`: the languages that a new conversation's title stands for, or ''.
-- `model`: which one its sender named; '' leaves the one that was named before.
-- `goes_on`: the turn goes on with a reply that is there.
-- `attached`: the replica has connections attached to it.
-- Answers {'accepted', who watches}, {'duplicate', turn, its record}, {'busy'} or {'moved'} (the caller's facts are not the store's).
local conversation, journal = KEYS[1], KEYS[2]
local asked, message, turn, event = cjson.decode(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
local known = redis.call('HGET', conversation, 'sent:' .. asked.client_msg_id)
if known == asked.turn_id then return {'accepted', redis.call('HGET', conversation, 'watchers') or ''} end
if known then return {'duplicate', known, redis.call('HGET', conversation, 'turn:' .. known)} end
local facts = redis.call('HMGET', conversation, 'epoch', 'seq', 'running', 'leaf', 'queue', 'messages')
if (facts[3] and facts[3] ~= '') or (facts[5] and facts[5] ~= '') then return {'busy'} end
local seq = NUMBER(facts[2] or 0, 'seq')
if (facts[1] and facts[1] ~= asked.epoch) or seq + 1 ~= asked.seq then return {'moved'} end
if asked.continues and (facts[4] or '') ~= asked.parent_id then return {'moved'} end
NUMBER(facts[6] or 0, 'messages')
CLEAR_WAY(journal, facts[1] and asked.seq or 0)

redis.call('XADD', journal, string.format('%d-0', asked.seq), 'event', event)
if redis.call('HSETNX', conversation, 'title', asked.title) == 1 and asked.titled_by ~= '' then
  redis.call('HSET', conversation, 'interprets', asked.titled_by)
end
NOTE_LEAF(conversation, asked.turn_id)
redis.call('HSET', conversation, 'epoch', asked.epoch, 'seq', asked.seq, 'running', asked.turn_id, 'runner', asked.replica,
  'leaf', asked.goes_on and asked.reply_id or asked.message_id, 'system', asked.system, 'context_from', asked.context_from, 'updated_at', asked.now,
  'sent:' .. asked.client_msg_id, asked.turn_id, 'turn:' .. asked.turn_id, turn)
if asked.model ~= '' then redis.call('HSET', conversation, 'model', asked.model) end
if message ~= '' then
  redis.call('HSET', conversation, 'message:' .. asked.message_id, message)
  redis.call('HINCRBY', conversation, 'messages', 1)
  ADD_CHILD(conversation, asked.parent_id, asked.message_id)
end
if not asked.goes_on then ADD_CHILD(conversation, asked.message_id, asked.reply_id) end
redis.call('PEXPIRE', conversation, asked.ttl)
redis.call('PEXPIRE', journal, asked.ttl)
redis.call('PEXPIRE', conversation .. ':images', asked.ttl)
if asked.attached then WATCH(conversation, asked.replica) end
return {'accepted', TELL(conversation, asked.replica, 'event', event)}
