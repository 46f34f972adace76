-- The store lost events that were told: what is written from here on is of another epoch.
-- KEYS: conversation hash. ARGV: the epoch that they were told in, the new one.
-- Answers nothing where there is no such conversation, else its epoch.
local conversation = KEYS[1]
local epoch = redis.call('HGET', conversation, 'epoch')
if epoch == ARGV[1] then
  epoch = ARGV[2]
  redis.call('HSET', conversation, 'epoch', epoch)
end
return epoch
