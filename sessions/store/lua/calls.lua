-- The calls of a reply: `calls:<reply>` names them in their order, `call:<id>` has each.
local function CALLS(conversation, reply_id)
  local told = {}
  for call in string.gmatch(redis.call('HGET', conversation, 'calls:' .. reply_id) or '', '%S+') do
    told[#told + 1] = call
    told[#told + 1] = redis.call('HGET', conversation, 'call:' .. call) or ''
  end
  return told
end
