-- A sealed conversation gets another id, since its person has one of that id.
-- KEYS: conversation hash. ARGV: the id that is taken, the next one.
-- Answers the id that it gets, or nothing where it was adopted meanwhile.
local conversation = KEYS[1]
local id = redis.call('HGET', conversation, 'adopted_as')
if id ~= ARGV[1] then return id end
redis.call('HSET', conversation, 'adopted_as', ARGV[2])
return ARGV[2]
