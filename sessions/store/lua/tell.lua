-- Publishes to a replica, about a key. Names in braces are those of replicas that listen on sharded channels, as in a
-- cluster: such a channel has to be in the key's slot, for a script may publish in its own node's slots alone.
local function SEND(key, name, message)
  if string.sub(name, 1, 1) == '{' then
    redis.call('SPUBLISH', key .. ':to:' .. name, message)
  else
    redis.call('PUBLISH', 'ms:to:' .. name, message)
  end
end

-- Tells the replicas that watch a conversation, but for the one that writes, which tells its own connections.
-- The message: its kind ('event': a journalled one), how long the conversation's key is, the key, what is said.
local function TELL(conversation, replica, kind, what)
  local watchers = redis.call('HGET', conversation, 'watchers')
  for name in string.gmatch(watchers or '', '%S+') do
    if name ~= replica then
      SEND(conversation, name, kind .. ' ' .. #conversation .. ' ' .. conversation .. what)
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
