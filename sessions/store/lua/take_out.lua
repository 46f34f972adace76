-- Takes a reply out of the history, and the message that it answers where that has no other reply.
-- What had been sent behind them stands behind what comes before them. Where they were active, the sibling before
-- becomes so, else the one behind, or else the parent.
local function TAKE_OUT(conversation, message_id, reply_id)
  local gone = {[reply_id] = true}
  local top, replies = reply_id, CHILDREN(conversation, message_id)
  if #replies == 0 or (#replies == 1 and replies[1] == reply_id) then
    gone[message_id] = true
    top = message_id
  end
  local parent = redis.call('HGET', conversation, 'parent:' .. top) or ''
  local left, before = {}, nil
  for _, sibling in ipairs(CHILDREN(conversation, parent)) do
    if sibling == top then before = left[#left] else left[#left + 1] = sibling end
  end
  local beside = before or left[1]
  SET_CHILDREN(conversation, parent, left)

  local behind = gone[message_id] and parent or beside
  for _, orphan in ipairs(CHILDREN(conversation, reply_id)) do ADD_CHILD(conversation, behind, orphan) end
  local stored = 0
  for id in pairs(gone) do
    stored = stored + redis.call('HDEL', conversation, 'message:' .. id)
    redis.call('HDEL', conversation, 'parent:' .. id, 'children:' .. id)
  end
  redis.call('HINCRBY', conversation, 'messages', -stored)

  local active = redis.call('HGET', conversation, 'leaf')
  if active == reply_id or active == message_id then
    redis.call('HSET', conversation, 'leaf', beside and NEWEST_LEAF(conversation, beside) or parent)
  end
end
