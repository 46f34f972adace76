-- Takes an exchange out of the history. Where it was active, the sibling before it becomes so, or else its parent.
local function TAKE_OUT(conversation, message_id)
  local function children(id)
    local list = {}
    for child in string.gmatch(redis.call('HGET', conversation, 'children:' .. id) or '', '%S+') do
      list[#list + 1] = child
    end
    return list
  end
  local parent = redis.call('HGET', conversation, 'parent:' .. message_id) or ''
  local gone, left, before = children(message_id), {}, nil
  gone[#gone + 1] = message_id
  for _, sibling in ipairs(children(parent)) do
    if sibling == message_id then before = left[#left] else left[#left + 1] = sibling end
  end
  local active, was_active = redis.call('HGET', conversation, 'leaf'), false
  for _, id in ipairs(gone) do
    was_active = was_active or id == active
    redis.call('HDEL', conversation, 'message:' .. id, 'parent:' .. id, 'children:' .. id)
  end
  redis.call('HINCRBY', conversation, 'messages', -#gone)
  if #left > 0 then
    redis.call('HSET', conversation, 'children:' .. parent, table.concat(left, ' '))
  else
    redis.call('HDEL', conversation, 'children:' .. parent)
  end
  if not was_active then return end
  local leaf = before or parent
  local below = before and children(leaf) or {}
  while #below > 0 do
    leaf = below[#below]
    below = children(leaf)
  end
  redis.call('HSET', conversation, 'leaf', leaf)
end
