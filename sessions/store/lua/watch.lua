-- A replica has connections attached to a conversation from now on: it will be told of every event.
-- KEYS: conversation hash. ARGV: replica.
-- Answers nothing where there is no such conversation, else {epoch, seq, running turn or '', its replica or ''}.
local conversation, replica = KEYS[1], ARGV[1]
local facts = redis.call('HMGET', conversation, 'epoch', 'seq', 'running', 'runner')
if not facts[1] then return false end
local watchers = WATCH(conversation, replica)
local runner = facts[4] or ''
if facts[3] ~= '' and runner ~= '' and runner ~= replica then
  SEND(conversation, runner, 'watchers ' .. #conversation .. ' ' .. conversation .. watchers)
end
return {facts[1], tonumber(facts[2]), facts[3] or '', runner}
