-- An exchange that had ended leaves the history, or what a turn added to a reply does.
-- KEYS: conversation hash, journal stream. ARGV: header, event, the reply as it was before ('': it leaves).
-- Answers 'ok' or {'ok', what WEIGH returns}, 'gone' (it had left before), 'followed' (the history goes on from it) or 'moved'.
local conversation, journal = KEYS[1], KEYS[2]
local asked, event, before = cjson.decode(ARGV[1]), ARGV[2], ARGV[3]
local removed = redis.call('HGET', conversation, 'removed:' .. asked.turn_id)
if removed and tonumber(string.match(removed, '^%d+')) == asked.seq then return 'ok' end
if redis.call('HEXISTS', conversation, 'message:' .. asked.reply_id) == 0 then return 'gone' end
if redis.call('HEXISTS', conversation, 'children:' .. asked.reply_id) == 1 then return 'followed' end
local facts = redis.call('HMGET', conversation, 'running', 'seq', 'queue', 'messages')
if facts[1] ~= '' or (facts[3] and facts[3] ~= '') then return 'followed' end
if NUMBER(facts[2], 'seq') + 1 ~= asked.seq then return 'moved' end
NUMBER(facts[4], 'messages')
CLEAR_WAY(journal, asked.seq)

redis.call('XADD', journal, string.format('%d-0', asked.seq), 'event', event)
if before == '' then
  TAKE_OUT(conversation, asked.message_id, asked.reply_id)
  redis.call('HDEL', conversation, 'note:' .. asked.turn_id)
else
  redis.call('HSET', conversation, 'message:' .. asked.reply_id, before)
  local calls = redis.call('HGET', conversation, 'calls:' .. asked.reply_id)
  for call in string.gmatch(calls or '', '%S+') do redis.call('HDEL', conversation, 'call:' .. call) end
  redis.call('HDEL', conversation, 'calls:' .. asked.reply_id)
end
redis.call('HSET', conversation, 'seq', asked.seq)
LINK_REMOVAL(conversation, asked.turn_id, asked.seq)
redis.call('PEXPIRE', journal, asked.window)
TELL(conversation, asked.replica, 'event', event)
if before ~= '' then TELL(conversation, asked.replica, 'branch', asked.reply_id) end
return {'ok', WEIGH(conversation, asked.ttl, '')}
