-- What a door keeps beside a turn: how it was asked for. It goes with the conversation.
-- KEYS: conversation hash. ARGV: turn, note. Answers 1, or 0 where there is no such turn.
if redis.call('HEXISTS', KEYS[1], 'turn:' .. ARGV[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], 'note:' .. ARGV[1], ARGV[2])
return 1
