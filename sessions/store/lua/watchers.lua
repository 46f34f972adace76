-- Notes that a replica has connections attached to a conversation; gives all that do.
local function WATCH(conversation, replica)
  local watchers = redis.call('HGET', conversation, 'watchers') or ''
  if not string.find(' ' .. watchers .. ' ', ' ' .. replica .. ' ', 1, true) then
    watchers = watchers == '' and replica or watchers .. ' ' .. replica
    redis.call('HSET', conversation, 'watchers', watchers)
  end
  return watchers
end
