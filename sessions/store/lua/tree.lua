-- The messages of a conversation as a tree: `parent:<id>` names what a message answers ('' at a root), `children:<id>` all
-- that answer it, in the order in which they came. A reply has its place from `accepted` on, its text (`message:<id>`)
-- from `done` on.
local function CHILDREN(conversation, id)
  local list = {}
  for child in string.gmatch(redis.call('HGET', conversation, 'children:' .. id) or '', '%S+') do
    list[#list + 1] = child
  end
  return list
end

local function SET_CHILDREN(conversation, id, list)
  if #list > 0 then
    redis.call('HSET', conversation, 'children:' .. id, table.concat(list, ' '))
  else
    redis.call('HDEL', conversation, 'children:' .. id)
  end
end

local function ADD_CHILD(conversation, id, child)
  redis.call('HSET', conversation, 'parent:' .. child, id)
  local list = CHILDREN(conversation, id)
  list[#list + 1] = child
  SET_CHILDREN(conversation, id, list)
end

-- The leaf that is reached from a message along the newest children.
local function NEWEST_LEAF(conversation, id)
  local below = CHILDREN(conversation, id)
  while #below > 0 do
    id = below[#below]
    below = CHILDREN(conversation, id)
  end
  return id
end

-- A reply that has its place gets its text, or more of it; it is the active leaf, unless the conversation went on meanwhile.
local function ADD_REPLY(conversation, message_id, reply_id, reply)
  local is_new = redis.call('HSET', conversation, 'message:' .. reply_id, reply)
  redis.call('HINCRBY', conversation, 'messages', is_new)
  if redis.call('HGET', conversation, 'leaf') == message_id then
    redis.call('HSET', conversation, 'leaf', reply_id)
  end
end
