-- Takes an exchange out of the history and makes the sibling before it active, or else its parent.
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
  for _, id in ipairs(gone) do
    redis.call('HDEL', conversation, 'message:' .. id, 'parent:' .. id, 'children:' .. id)
  end
  redis.call('HINCRBY', conversation, 'messages', -#gone)
  if #left > 0 then
    redis.call('HSET', conversation, 'children:' .. parent, table.concat(left, ' '))
  else
    redis.call('HDEL', conversation, 'children:' .. parent)
  end
  local leaf = before or parent
  local below = before and children(leaf) or {}
  while #below > 0 do
    leaf = below[#below]
    below = children(leaf)
  end
  redis.call('HSET', conversation, 'leaf', leaf)
end
