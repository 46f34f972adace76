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

-- A turn begins, and makes another leaf the active one: the one before is noted, in case the turn is refused after all.
local function NOTE_LEAF(conversation, turn_id)
  local leaf = redis.call('HGET', conversation, 'leaf') or ''
  redis.call('HSET', conversation, 'leaf_before', turn_id .. ' ' .. leaf)
end

-- What TAKE_BACK does took the turn out: the leaf that was active before it is active again, unless another one became so.
local function WITH_LEAF_BEFORE(conversation, turn_id, message_id, reply_id, TAKE_BACK)
  local active = redis.call('HGET', conversation, 'leaf')
  TAKE_BACK()
  local turn, leaf = string.match(redis.call('HGET', conversation, 'leaf_before') or '', '^(%S+) (%S+)$')
  if turn ~= turn_id or (active ~= message_id and active ~= reply_id) then return end
  if redis.call('HEXISTS', conversation, 'parent:' .. leaf) == 1 then redis.call('HSET', conversation, 'leaf', leaf) end
end

-- A reply that has its place gets its text, or more of it; it is the active leaf, unless the conversation went on meanwhile.
local function ADD_REPLY(conversation, message_id, reply_id, reply)
  local is_new = redis.call('HSET', conversation, 'message:' .. reply_id, reply)
  redis.call('HINCRBY', conversation, 'messages', is_new)
  if redis.call('HGET', conversation, 'leaf') == message_id then
    redis.call('HSET', conversation, 'leaf', reply_id)
  end
end
