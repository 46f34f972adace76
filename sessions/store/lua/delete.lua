-- A conversation leaves the store; the replicas that watch it are told.
-- KEYS: conversation hash, journal stream. ARGV: replica, '1' where a turn that has no end does not matter.
-- Answers {its epoch, what the ledgers count for it and for its images}, '' where a turn runs or waits, or nothing where there is
-- no such conversation and no image.
local conversation, journal = KEYS[1], KEYS[2]
local epoch = redis.call('HGET', conversation, 'epoch')
if not epoch then -- images may be there of a first message that was refused
  local _, charged = CHARGED(conversation)
  redis.call('UNLINK', conversation .. ':images')
  return charged ~= '' and {'', '', charged}
end
if ARGV[2] ~= '1' then
  for _, turns in ipairs(redis.call('HMGET', conversation, 'running', 'queue')) do
    if turns and turns ~= '' then return '' end
  end
end
TELL(conversation, ARGV[1], 'deleted', epoch)
local hash, images = CHARGED(conversation)
redis.call('UNLINK', conversation, journal, conversation .. ':images')
return {epoch, hash, images}
