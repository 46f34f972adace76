-- Names the link by which a conversation may be read: the one that it has, else a new one.
-- KEYS: conversation hash. ARGV: the new name.
-- Answers {name, the leaf of the active branch}, or nothing where there is no such conversation, or it has no message.
local conversation = KEYS[1]
local leaf = redis.call('HGET', conversation, 'leaf')
if not leaf or leaf == '' or redis.call('HEXISTS', conversation, 'epoch') == 0 then return false end
redis.call('HSETNX', conversation, 'share', ARGV[1])
return {redis.call('HGET', conversation, 'share'), leaf}
