-- A replica has connections attached to a conversation from now on, so that it is told of every event; others have none any more,
-- or are dead. The replica that runs a turn is told who watches.
-- KEYS: conversation hash. ARGV: the replica that comes, or '', then those that leave.
-- Answers who watches, or nothing where there is no such conversation.
local conversation, comes = KEYS[1], ARGV[1]
local facts = redis.call('HMGET', conversation, 'epoch', 'watchers', 'running', 'runner')
if not facts[1] then return false end
local gone, left = {[comes] = true}, {}
for i = 2, #ARGV do gone[ARGV[i]] = true end
for name in string.gmatch(facts[2] or '', '%S+') do
  if not gone[name] then left[#left + 1] = name end
end
if comes ~= '' then left[#left + 1] = comes end
local watchers = table.concat(left, ' ')
if comes == '' and watchers == (facts[2] or '') then return watchers end
redis.call('HSET', conversation, 'watchers', watchers)
local runner = facts[3] ~= '' and facts[4] or ''
if runner ~= '' and not gone[runner] then
  redis.call('PUBLISH', 'ms:to:' .. runner, 'watchers ' .. #conversation .. ' ' .. conversation .. watchers)
end
return watchers
