-- Tells the replicas that watch a conversation, but for the one that writes, which tells its own connections.
-- The message: its kind ('event': a journalled one), how long the conversation's key is, the key, what is said.
local function TELL(conversation, replica, kind, what)
  local watchers = redis.call('HGET', conversation, 'watchers')
  for name in string.gmatch(watchers or '', '%S+') do
    if name ~= replica then
      redis.call('PUBLISH', 'ms:to:' .. name, kind .. ' ' .. #conversation .. ' ' .. conversation .. what)
    end
  end
  return watchers or ''
end

-- Notes that a replica has connections attached to a conversation; gives all that do.
local function WATCH(conversation, replica)
  local watchers = redis.call('HGET', conversation, 'watchers') or ''
  if not string.find(' ' .. watchers .. ' ', ' ' .. replica .. ' ', 1, true) then
    watchers = watchers == '' and replica or watchers .. ' ' .. replica
    redis.call('HSET', conversation, 'watchers', watchers)
  end
  return watchers
end
