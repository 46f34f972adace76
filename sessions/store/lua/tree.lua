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

-- Takes a reply out of the history, and the message that it answers where that has no other reply. Where that is a reply
-- whose calls it follows, what comes before that leaves in the same way: an exchange leaves with all its rounds.
-- What had been sent behind them stands behind what comes before them. Where they were active, the sibling before
-- becomes so, else the one behind, or else the parent.
local function TAKE_OUT(conversation, message_id, reply_id)
  local gone, top, above = {[reply_id] = true}, reply_id, message_id
  while above ~= '' do
    local replies = CHILDREN(conversation, above)
    if #replies > 1 or (#replies == 1 and replies[1] ~= top) then break end
    gone[above], top = true, above
    if redis.call('HEXISTS', conversation, 'calls:' .. above) == 0 then break end
    above = redis.call('HGET', conversation, 'parent:' .. above) or ''
  end
  local parent = redis.call('HGET', conversation, 'parent:' .. top) or ''
  local left, before = {}, nil
  for _, sibling in ipairs(CHILDREN(conversation, parent)) do
    if sibling == top then before = left[#left] else left[#left + 1] = sibling end
  end
  local beside = before or left[1]
  SET_CHILDREN(conversation, parent, left)

  local is_reply = top == reply_id or redis.call('HEXISTS', conversation, 'calls:' .. top) == 1
  local behind = is_reply and beside or parent
  for _, orphan in ipairs(CHILDREN(conversation, reply_id)) do ADD_CHILD(conversation, behind, orphan) end
  local active, stored = redis.call('HGET', conversation, 'leaf'), 0
  for id in pairs(gone) do
    stored = stored + redis.call('HDEL', conversation, 'message:' .. id)
    for call in string.gmatch(redis.call('HGET', conversation, 'calls:' .. id) or '', '%S+') do
      redis.call('HDEL', conversation, 'call:' .. call)
    end
    redis.call('HDEL', conversation, 'parent:' .. id, 'children:' .. id, 'calls:' .. id)
  end
  redis.call('HINCRBY', conversation, 'messages', 0 - stored) -- Redis 7.0 writes the other zero as -0, which it does not read
  if gone[active] or active == message_id then
    redis.call('HSET', conversation, 'leaf', beside and NEWEST_LEAF(conversation, beside) or parent)
  end
end

-- The calls of a reply: `calls:<reply>` names them in their order, `call:<id>` has each.
local function CALLS(conversation, reply_id)
  local told = {}
  for call in string.gmatch(redis.call('HGET', conversation, 'calls:' .. reply_id) or '', '%S+') do
    told[#told + 1] = call
    told[#told + 1] = redis.call('HGET', conversation, 'call:' .. call) or ''
  end
  return told
end
