-- The copy of an adopted conversation takes its place, once: with a mark that outlives it, so that a repetition does not
-- bring back what was deleted since. Its journal is empty, and its epoch new: events name the old id.
-- KEYS: conversation hash, journal stream, copy, mark. ARGV: epoch, milliseconds that it is kept for.
-- Answers 'ok', 'taken' (the person has a conversation of this id) or 'gone' (the copy is).
local conversation, journal, copy, mark = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local epoch, ttl = ARGV[1], ARGV[2]
if redis.call('EXISTS', mark) == 1 then
  redis.call('UNLINK', copy)
  return 'ok'
end
if redis.call('EXISTS', conversation) == 1 then
  redis.call('UNLINK', copy)
  return 'taken'
end
if redis.call('EXISTS', copy) == 0 then return 'gone' end
redis.call('UNLINK', journal)
redis.call('RENAME', copy, conversation)
redis.call('HSET', conversation, 'epoch', epoch, 'running', '', 'watchers', '')
redis.call('HDEL', conversation, 'adopted_as', 'charged')
redis.call('PEXPIRE', conversation, ttl)
redis.call('SET', mark, '1', 'PX', ttl)
return 'ok'
