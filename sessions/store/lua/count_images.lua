-- So many bytes of images lie at a place from now on: an owner's uploads, one of its conversations, or an owner of a group.
-- KEYS: the ledger. ARGV: place, how ('add': so many come; 'least': so many or more; 'set': so many, 0 where it is gone), bytes,
-- the most that all places may have ('': no matter), seconds that the ledger is kept, the ledger's group ('': as before).
-- Answers {the bytes of all places, the group}, or nothing where it would be too much: then all is as it was.
local ledger, place, how, bytes, most = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local function KEPT(field) return tonumber(redis.call('HGET', ledger, field) or 0) end
local before = KEPT(place)
local after = bytes
if how == 'add' then after = math.max(0, before + bytes) elseif how == 'least' then after = math.max(before, bytes) end
local sum = KEPT('sum') + after - before
if most and after > before and sum > most then return false end

local group = ARGV[6] ~= '' and ARGV[6] or redis.call('HGET', ledger, 'group') or ''
if sum <= 0 then
  redis.call('UNLINK', ledger)
  return {0, group}
end
redis.call('HSET', ledger, 'sum', sum, 'group', group)
if after > 0 then redis.call('HSET', ledger, place, after) else redis.call('HDEL', ledger, place) end
redis.call('EXPIRE', ledger, ARGV[5])
return {sum, group}
