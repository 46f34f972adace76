-- Counts a message no longer that another limit refused; one that was taken back before changes nothing.
-- KEYS: messages of the last minute, and where there is a limit of them messages of today. ARGV: the message's number.
if redis.call('ZREM', KEYS[1], ARGV[1]) == 1 and KEYS[2] then redis.call('DECR', KEYS[2]) end
