-- What a door keeps beside a turn: how it was asked for. It goes with the conversation.
-- KEYS: conversation hash. ARGV: turn, note, milliseconds that a conversation is kept.
-- Answers what WEIGH returns, or nothing where there is no such turn.
if redis.call('HEXISTS', KEYS[1], 'turn:' .. ARGV[1]) == 0 then return false end
redis.call('HSET', KEYS[1], 'note:' .. ARGV[1], ARGV[2])
return WEIGH(KEYS[1], ARGV[3], '')
