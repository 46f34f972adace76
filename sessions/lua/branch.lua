-- The messages from a leaf towards the root, newest first, each followed by its siblings' ids.
-- KEYS: conversation hash. ARGV: leaf ('' for the active one), how many at most, the id to end with ('' for the root).
-- Answers {epoch, seq, id of the next older message or '', {message, siblings, ...}}.
local conversation = KEYS[1]
local leaf, limit, last = unpack(ARGV)
local facts = redis.call('HMGET', conversation, 'epoch', 'seq', 'leaf')
local id = leaf ~= '' and leaf or facts[3] or ''
local rows = {}
while id ~= '' and #rows < 2 * tonumber(limit) do
  local message = redis.call('HGET', conversation, 'message:' .. id)
  if not message then break end
  local parent = redis.call('HGET', conversation, 'parent:' .. id) or ''
  rows[#rows + 1] = message
  rows[#rows + 1] = redis.call('HGET', conversation, 'children:' .. parent) or id
  if id == last then id = '' else id = parent end
end
return {facts[1] or '', tonumber(facts[2]) or 0, id, rows}
