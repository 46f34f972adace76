-- Puts a conversation into its owner's list, by the store's clock: replicas' clocks may differ.
-- What expired leaves the list with it, and so does what is too much.
-- KEYS: the list, ledgers. ARGV: conversation, how long a conversation is kept (ms), how much longer its row (ms), how many rows
-- there are at most, then what the ledgers admit, as in `admit.lua`.
-- Answers nothing, or the number of the ledger that has no room: then nothing has changed.
local conversation, ttl, slack, most = unpack(ARGV)
local refused = KEYS[2] and ADMIT(2, 5)
if refused then return refused end
local now = NOW()
redis.call('ZADD', KEYS[1], 'GT', now, conversation)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ttl - slack)
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -most - 1)
redis.call('PEXPIRE', KEYS[1], ttl)
