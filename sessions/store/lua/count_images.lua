-- So many bytes of images lie at some places from now on: an owner's uploads, conversations of that owner, or owners of a group.
-- KEYS: the ledger. ARGV: the most that all places may have ('': no matter), seconds that the ledger is kept, the ledger's group
-- ('': as before), then for each change: place, how ('add': so many come; 'least': so many or more; 'set': so many, 0 where it is
-- gone), bytes.
-- Answers {the bytes of all places, the group}, or nothing where the last change would be too much: then it alone is left out.
local ledger, most = KEYS[1], tonumber(ARGV[1])
local function KEPT(field) return tonumber(redis.call('HGET', ledger, field) or 0) end
local sum, is_too_much = KEPT('sum'), false
for at = 4, #ARGV, 3 do
  local place, how, bytes = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  local before, after = KEPT(place), bytes
  if how == 'add' then after = math.max(0, before + bytes) elseif how == 'least' then after = math.max(before, bytes) end
  local total = sum + after - before
  is_too_much = at + 3 > #ARGV and most and after > before and total > most
  if not is_too_much then
    sum = total
    if after > 0 then redis.call('HSET', ledger, place, after) else redis.call('HDEL', ledger, place) end
  end
end

local group = not is_too_much and ARGV[3] ~= '' and ARGV[3] or redis.call('HGET', ledger, 'group') or ''
if sum <= 0 then
  redis.call('UNLINK', ledger)
else
  redis.call('HSET', ledger, 'sum', sum, 'group', group)
  redis.call('EXPIRE', ledger, ARGV[2])
end
if is_too_much then return false end
return {math.max(sum, 0), group}
