-- A client's conversation takes no more writes, since its person adopts it: `running` names no turn, but is taken.
-- KEYS: conversation hash. ARGV: the id that it is to get, unless it has one; then replicas that are dead.
-- Answers nothing where there is no such conversation, {'runs'} (a turn has no end yet), {'watched', by which replicas},
-- or {'sealed', the id that it gets, milliseconds that it is kept for, epoch}.
local conversation = KEYS[1]
local facts = redis.call('HMGET', conversation, 'epoch', 'running', 'queue', 'watchers', 'adopted_as')
if not facts[1] then return false end
if facts[2] ~= 'adoption' then
  if (facts[2] and facts[2] ~= '') or (facts[3] and facts[3] ~= '') then return {'runs'} end
  local dead, watching = {}, {}
  for i = 2, #ARGV do dead[ARGV[i]] = true end
  for name in string.gmatch(facts[4] or '', '%S+') do
    if not dead[name] then watching[#watching + 1] = name end
  end
  if #watching > 0 then return {'watched', table.concat(watching, ' ')} end
  redis.call('HSET', conversation, 'running', 'adoption', 'adopted_as', ARGV[1])
  facts[5] = ARGV[1]
end
return {'sealed', facts[5], redis.call('PTTL', conversation), facts[1]}
