-- A replica has connections attached to a conversation from now on: it will be told of every event.
-- KEYS: conversation hash. ARGV: replica.
-- Answers whether there is such a conversation.
local conversation, replica = KEYS[1], ARGV[1]
local facts = redis.call('HMGET', conversation, 'epoch', 'running', 'runner')
if not facts[1] then return false end
local watchers = WATCH(conversation, replica)
local runner = facts[3] or ''
if facts[2] ~= '' and runner ~= '' and runner ~= replica then
  SEND(conversation, runner, 'watchers ' .. #conversation .. ' ' .. conversation .. watchers)
end
return true
