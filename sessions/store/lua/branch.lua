-- The messages from a leaf towards the root, newest first, each followed by its parent's id and its siblings.
-- A reply that has no end yet has its place in them, and '' for its text; it does not count for the limit.
-- KEYS: conversation hash. ARGV: leaf ('' for the active one), how many at most, the id to end with ('' for the root),
-- how many siblings of a message are told: those nearest to it, how many bytes of messages and their calls at most ('': all): of the
-- message that exceeds them nothing is left out, and none is read behind it.
-- Answers {epoch, seq, id of the next older message or '', the turn that runs or '', {id, message, parent, siblings told, how many there are,
-- how many come before it, its calls (each one's id and record), ...}}.
local conversation = KEYS[1]
local leaf, limit, last, told = unpack(ARGV)
local most = tonumber(ARGV[5]) or math.huge
local facts = redis.call('HMGET', conversation, 'epoch', 'seq', 'leaf', 'running')
local id = leaf
if id == '' and facts[3] and facts[3] ~= '' then id = NEWEST_LEAF(conversation, facts[3]) end

local function BESIDE(parent, child)
  local all, place = {}, 1
  for sibling in string.gmatch(redis.call('HGET', conversation, 'children:' .. parent) or child, '%S+') do
    all[#all + 1] = sibling
    if sibling == child then place = #all end
  end
  local most = tonumber(told)
  local first = math.max(1, math.min(place - math.floor(most / 2), #all - most + 1))
  return table.concat(all, ' ', first, math.min(#all, first + most - 1)), #all, place - 1
end

local rows, left, bytes = {}, tonumber(limit), 0
while id ~= '' and left > 0 and bytes <= most do
  local parent = redis.call('HGET', conversation, 'parent:' .. id)
  if not parent then break end
  local message = redis.call('HGET', conversation, 'message:' .. id)
  local siblings, count, before = BESIDE(parent, id)
  local calls = CALLS(conversation, id)
  if message then
    left, bytes = left - 1, bytes + #message
    for _, part in ipairs(calls) do bytes = bytes + #part end
  end
  for _, part in ipairs({id, message or '', parent, siblings, count, before, calls}) do
    rows[#rows + 1] = part
  end
  if id == last then id = '' else id = parent end
end
return {facts[1] or '', tonumber(facts[2]) or 0, id, facts[4] or '', rows}
