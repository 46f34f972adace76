-- Puts a conversation into its owner's list, by the store's clock: replicas' clocks may differ.
-- What expired leaves the list with it, and so does what is too much.
-- KEYS: the list. ARGV: conversation, how long a conversation is kept (ms), how much longer its row (ms), how many rows
-- there are at most, its place (Unix milliseconds; '' for the head).
local conversation, ttl, slack, most, place = unpack(ARGV)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], 'GT', place == '' and now or place, conversation)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ttl - slack)
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -most - 1)
redis.call('PEXPIRE', KEYS[1], ttl)
