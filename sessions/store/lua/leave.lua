-- Replicas have no connection attached to a conversation any more, or are dead.
-- KEYS: conversation hash. ARGV: replicas.
-- Answers who watches still.
local conversation = KEYS[1]
local facts = redis.call('HMGET', conversation, 'watchers', 'running', 'runner')
if not facts[1] then return '' end
local gone, left = {}, {}
for _, replica in ipairs(ARGV) do gone[replica] = true end
for name in string.gmatch(facts[1], '%S+') do
  if not gone[name] then left[#left + 1] = name end
end
local watchers = table.concat(left, ' ')
if watchers == facts[1] then return watchers end
redis.call('HSET', conversation, 'watchers', watchers)
if facts[2] and facts[2] ~= '' and facts[3] and not gone[facts[3]] then
  SEND(conversation, facts[3], 'watchers ' .. #conversation .. ' ' .. conversation .. watchers)
end
return watchers
