-- A turn ends, once: its reply enters the history, or its exchange leaves it.
-- KEYS: conversation hash, journal stream. ARGV: header, reply, turn record, event, what follows, then the id and the record
-- of each of the reply's calls.
-- `mends`: the journal could not be written: it begins anew with this event, since the hash has all that ended.
-- `next`: the turn that follows once the calls are settled, which runs from here on; its reply, `next_reply`, has its place
-- at once, and what was sent behind this turn stands behind that one.
-- `window`: for how long the journal is kept where no other turn waits, in milliseconds: the hash has what ended, too.
-- `stays`: it went on with a reply and added nothing: that stands as it did. `group`: whose ledger counts the conversation.
-- A full store takes an end, too: a script whose first write needs no memory may finish.
-- Answers {'ok', what WEIGH returns} or {'lost'} (the turn had ended, or is no longer the caller's).
local conversation, journal = KEYS[1], KEYS[2]
local asked, reply, turn, event, follow = cjson.decode(ARGV[1]), ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local facts = redis.call('HMGET', conversation, 'running', 'seq', 'messages', 'queue')
if facts[1] ~= asked.turn_id then
  local known = redis.call('HGET', conversation, 'turn:' .. asked.turn_id) or ''
  return {string.match(known, '\n(.*)$') == turn and 'ok' or 'lost'}
end
local seq = NUMBER(facts[2], 'seq')
if seq >= asked.seq or (seq + 1 ~= asked.seq and not asked.mends) then return {'lost'} end
NUMBER(facts[3] or 0, 'messages')
redis.call('PEXPIRE', conversation, asked.ttl)
CLEAR_WAY(journal, asked.mends and 0 or asked.seq)

redis.call('XADD', journal, string.format('%d-0', asked.seq), 'event', event)
redis.call('XTRIM', journal, 'MAXLEN', '~', asked.kept)
if asked.removed then
  TAKE_OUT(conversation, asked.message_id, asked.reply_id)
elseif not asked.stays then
  ADD_REPLY(conversation, asked.message_id, asked.reply_id, reply)
  local calls = {}
  for i = 6, #ARGV, 2 do
    calls[#calls + 1] = ARGV[i]
    redis.call('HSET', conversation, 'call:' .. ARGV[i], ARGV[i + 1])
  end
  if calls[1] then redis.call('HSET', conversation, 'calls:' .. asked.reply_id, table.concat(calls, ' ')) end
end
if asked.next ~= '' then
  for _, child in ipairs(CHILDREN(conversation, asked.reply_id)) do ADD_CHILD(conversation, asked.next_reply, child) end
  SET_CHILDREN(conversation, asked.reply_id, {})
  ADD_CHILD(conversation, asked.reply_id, asked.next_reply)
  redis.call('HSET', conversation, 'follow', follow)
else
  redis.call('HDEL', conversation, 'follow')
end
redis.call('HSET', conversation, 'running', asked.next, 'seq', asked.seq, 'updated_at', asked.now)
LINK_END(conversation, asked.turn_id, asked.seq, turn)
local is_last = asked.next == '' and (facts[4] or '') == ''
redis.call('PEXPIRE', journal, is_last and asked.window or asked.ttl)
redis.call('PEXPIRE', conversation .. ':images', asked.ttl)
TELL(conversation, asked.replica, 'event', event)
return {'ok', WEIGH(conversation, asked.ttl, asked.group)}
