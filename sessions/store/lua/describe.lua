-- A client creates a conversation without messages, with a description.
-- KEYS: conversation hash. ARGV: its epoch, now, description, milliseconds that a conversation is kept, group whose ledger counts
-- it.
-- Answers what WEIGH returns, or nothing where there is one already.
local conversation = KEYS[1]
local epoch, now, description, ttl, group = unpack(ARGV)
local known = redis.call('HGET', conversation, 'epoch')
if known and known ~= epoch then return false end
if not known then
  redis.call('HSET', conversation, 'epoch', epoch, 'seq', 0, 'messages', 0, 'running', '', 'updated_at', now)
end
redis.call('HSET', conversation, 'description', description)
redis.call('PEXPIRE', conversation, ttl)
return WEIGH(conversation, ttl, group)
