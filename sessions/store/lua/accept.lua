-- A turn begins, once per client_msg_id: its message enters the history, or is there already (`message` is '' then).
-- KEYS: conversation hash, journal stream.
-- `continues`: '1' where the sender asked for the active leaf, which `parent_id` must still be.
-- `attached`: '1' where the replica has connections attached to it.
-- Answers {'accepted', who watches}, {'duplicate', turn record}, {'busy'} or {'moved'} (the caller's facts are not the store's).
local conversation, journal = KEYS[1], KEYS[2]
local client_msg_id, turn_id, message_id, parent_id, epoch, seq,
  message, turn, event, now, ttl, title, system, context_from, replica, attached, reply_id, continues = unpack(ARGV)
local known = redis.call('HGET', conversation, 'sent:' .. client_msg_id)
if known == turn_id then return {'accepted', redis.call('HGET', conversation, 'watchers') or ''} end
if known then return {'duplicate', redis.call('HGET', conversation, 'turn:' .. known)} end
local facts = redis.call('HMGET', conversation, 'epoch', 'seq', 'running', 'leaf', 'queue')
if (facts[3] and facts[3] ~= '') or (facts[5] and facts[5] ~= '') then return {'busy'} end
if (facts[1] and facts[1] ~= epoch) or (tonumber(facts[2]) or 0) + 1 ~= tonumber(seq) then return {'moved'} end
if continues == '1' and (facts[4] or '') ~= parent_id then return {'moved'} end

redis.call('HSETNX', conversation, 'title', title)
redis.call('HSET', conversation, 'epoch', epoch, 'seq', seq, 'running', turn_id, 'runner', replica, 'leaf', message_id,
  'system', system, 'context_from', context_from, 'updated_at', now,
  'sent:' .. client_msg_id, turn_id, 'turn:' .. turn_id, turn)
if message ~= '' then
  redis.call('HSET', conversation, 'message:' .. message_id, message)
  redis.call('HINCRBY', conversation, 'messages', 1)
  ADD_CHILD(conversation, parent_id, message_id)
end
ADD_CHILD(conversation, message_id, reply_id)
redis.call('XADD', journal, seq .. '-0', 'event', event)
redis.call('PEXPIRE', conversation, ttl)
redis.call('PEXPIRE', journal, ttl)
if attached == '1' then WATCH(conversation, replica) end
return {'accepted', TELL(conversation, replica, 'event', event)}
