-- A user's message enters the history and its turn begins, once per client_msg_id.
-- KEYS: conversation hash, journal stream.
-- Answers {'accepted'}, {'duplicate', turn record}, {'busy'} or {'moved'} (the caller's facts are not the store's).
local conversation, journal = KEYS[1], KEYS[2]
local client_msg_id, turn_id, message_id, parent_id, epoch, seq,
  message, turn, event, now, ttl, title, system, context_from = unpack(ARGV)
local known = redis.call('HGET', conversation, 'sent:' .. client_msg_id)
if known == turn_id then return {'accepted'} end
if known then return {'duplicate', redis.call('HGET', conversation, 'turn:' .. known)} end
local facts = redis.call('HMGET', conversation, 'epoch', 'seq', 'running')
if facts[3] and facts[3] ~= '' then return {'busy'} end
if (facts[1] and facts[1] ~= epoch) or (tonumber(facts[2]) or 0) + 1 ~= tonumber(seq) then return {'moved'} end

redis.call('HSETNX', conversation, 'title', title)
redis.call('HSET', conversation, 'epoch', epoch, 'seq', seq, 'running', turn_id, 'leaf', message_id,
  'system', system, 'context_from', context_from, 'updated_at', now,
  'sent:' .. client_msg_id, turn_id, 'turn:' .. turn_id, turn,
  'message:' .. message_id, message, 'parent:' .. message_id, parent_id)
redis.call('HINCRBY', conversation, 'messages', 1)
local siblings = redis.call('HGET', conversation, 'children:' .. parent_id)
redis.call('HSET', conversation, 'children:' .. parent_id, siblings and (siblings .. ' ' .. message_id) or message_id)
redis.call('XADD', journal, seq .. '-0', 'event', event)
redis.call('PEXPIRE', conversation, ttl)
redis.call('PEXPIRE', journal, ttl)
return {'accepted'}
