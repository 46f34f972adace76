-- Gives a conversation that is still there another title.
-- KEYS: conversation hash. ARGV: title.
-- Answers {title, updated_at, messages} as the list shows them, or nothing where there is no such conversation.
local conversation = KEYS[1]
if redis.call('HEXISTS', conversation, 'epoch') == 0 then return false end
redis.call('HSET', conversation, 'title', ARGV[1])
return redis.call('HMGET', conversation, 'title', 'updated_at', 'messages')
