-- Gives a conversation that is still there another title, which stands for no languages.
-- KEYS: conversation hash. ARGV: title, the one that it shall stand for, if only that one.
-- Answers {title, updated_at, messages, interprets} as the list shows them, or nothing where there is no such conversation, or its title is another.
local conversation = KEYS[1]
if redis.call('HEXISTS', conversation, 'epoch') == 0 then return false end
if ARGV[2] and redis.call('HGET', conversation, 'title') ~= ARGV[2] then return false end
redis.call('HSET', conversation, 'title', ARGV[1])
redis.call('HDEL', conversation, 'interprets')
return redis.call('HMGET', conversation, 'title', 'updated_at', 'messages', 'interprets')
