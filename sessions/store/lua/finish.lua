-- A turn ends, once: its reply enters the history, or its exchange leaves it.
-- KEYS: conversation hash, journal stream.
-- Answers 'ok' or 'lost' (the turn had ended, or is no longer the caller's).
local conversation, journal = KEYS[1], KEYS[2]
local turn_id, seq, message_id, reply_id, reply, turn, event, now, ttl, kept, removed, replica = unpack(ARGV)
local facts = redis.call('HMGET', conversation, 'running', 'seq')
if facts[1] ~= turn_id then
  return redis.call('HGET', conversation, 'turn:' .. turn_id) == turn and 'ok' or 'lost'
end
if tonumber(facts[2]) + 1 ~= tonumber(seq) then return 'lost' end

if removed == '1' then
  TAKE_OUT(conversation, message_id, reply_id)
else
  ADD_REPLY(conversation, message_id, reply_id, reply)
end
redis.call('HSET', conversation, 'running', '', 'seq', seq, 'turn:' .. turn_id, turn, 'updated_at', now)
redis.call('XADD', journal, seq .. '-0', 'event', event)
redis.call('XTRIM', journal, 'MAXLEN', '~', kept)
redis.call('PEXPIRE', conversation, ttl)
redis.call('PEXPIRE', journal, ttl)
TELL(conversation, replica, 'event', event)
return 'ok'
