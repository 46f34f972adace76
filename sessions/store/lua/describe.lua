-- A client describes a conversation: one that has messages or had some, or a new one, which this creates.
-- KEYS: conversation hash. ARGV: epoch of the new one ('': there has to be one), now, description, milliseconds that a conversation
-- is kept, group whose ledger counts a new one.
-- Answers what WEIGH returns, or nothing where there is one already, or none.
local conversation = KEYS[1]
local epoch, now, description, ttl, group = unpack(ARGV)
local known = redis.call('HGET', conversation, 'epoch')
if (epoch == '') ~= (known ~= false) and known ~= epoch then return false end
if not known then
  redis.call('HSET', conversation, 'epoch', epoch, 'seq', 0, 'messages', 0, 'running', '', 'updated_at', now)
end
redis.call('HSET', conversation, 'description', description)
redis.call('PEXPIRE', conversation, ttl)
return WEIGH(conversation, ttl, group)
