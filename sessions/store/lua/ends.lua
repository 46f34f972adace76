-- The ends of a conversation's turns, newest first: a chain through the hash, from which ended turns can be told again
-- once their events have left the journal. `ended` names the newest link, `ended_seq` is its seq, and everything up
-- to there is in the chain. A link is 't' and a turn, whose record then begins
-- with the link before it and a line feed; or 'r' and a turn that was removed: `removed:<turn>` is its seq and the link
-- before it.

-- Makes sure of what a write needs before it begins. What stands in the way of the journal's next event is not of this
-- conversation: it outlived the hash that it belonged to, or has another type.
local function CLEAR_WAY(journal, seq)
  local kind = redis.call('TYPE', journal).ok
  if kind == 'none' then return end
  if kind == 'stream' then
    local newest = redis.call('XREVRANGE', journal, '+', '-', 'COUNT', 1)[1]
    if newest and tonumber(string.match(newest[1], '^%d+')) < seq then return end
  end
  redis.call('UNLINK', journal)
end

local function NUMBER(value, name)
  local number = tonumber(value)
  if not number then error(name .. ' is no number') end
  return number
end

local function LINK(conversation, link, seq)
  redis.call('HSET', conversation, 'ended', link, 'ended_seq', seq)
end

-- `turn` ends with a record.
local function LINK_END(conversation, turn_id, seq, record)
  local before = redis.call('HGET', conversation, 'ended') or ''
  redis.call('HSET', conversation, 'turn:' .. turn_id, before .. '\n' .. record)
  LINK(conversation, 't' .. turn_id, seq)
end

-- An exchange was removed.
local function LINK_REMOVAL(conversation, turn_id, seq)
  local before = redis.call('HGET', conversation, 'ended') or ''
  redis.call('HSET', conversation, 'removed:' .. turn_id, string.format('%d %s', seq, before))
  LINK(conversation, 'r' .. turn_id, seq)
end
