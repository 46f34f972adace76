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
