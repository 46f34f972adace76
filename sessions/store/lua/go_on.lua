-- A turn that waits for calls goes on at another replica, and has another name from here on: what the one that had it before
-- still writes is refused.
-- KEYS: conversation hash. ARGV: its name, the next one, the replica, what follows.
-- Answers who watches, or nothing where it does not wait under that name.
local conversation = KEYS[1]
local turn_id, next_id, replica, follow = unpack(ARGV)
local running = redis.call('HGET', conversation, 'running')
if running ~= next_id then
  if running ~= turn_id or redis.call('HEXISTS', conversation, 'follow') == 0 then return false end
  redis.call('HSET', conversation, 'running', next_id, 'runner', replica, 'follow', follow)
end
return redis.call('HGET', conversation, 'watchers') or ''
