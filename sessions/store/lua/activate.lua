-- Makes the branch through a message the active one: from it down along the newest children.
-- KEYS: conversation hash. ARGV: message id, replica.
-- Answers 'ok', 'same' (it was active before), 'busy' (a turn runs), 'unknown' (no such message) or 'none' (no conversation).
local conversation, message_id = KEYS[1], ARGV[1]
local facts = redis.call('HMGET', conversation, 'epoch', 'running', 'leaf', 'message:' .. message_id, 'queue')
if not facts[1] then return 'none' end
if not facts[4] then return 'unknown' end
if (facts[2] and facts[2] ~= '') or (facts[5] and facts[5] ~= '') then return 'busy' end
local leaf = NEWEST_LEAF(conversation, message_id)
if leaf == facts[3] then return 'same' end
redis.call('HSET', conversation, 'leaf', leaf)
TELL(conversation, ARGV[2], 'branch', leaf)
return 'ok'
