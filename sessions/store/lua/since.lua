-- What happened behind a seq: what the journal has, and before that, what is kept of turns whose events have left it.
-- KEYS: conversation hash, journal stream. ARGV: seq, how many bytes of older turns at most, and of the journal ('': all).
-- Answers nothing where there is no such conversation, else {epoch, seq, running turn or '', its record or '', seq of the
-- oldest event in the journal, seq of the newest end, from where on everything is in this answer, events,
-- {turn, its record, its message, its reply, the calls of both, ...}, 1 where the journal has more bytes behind the seq: no events then, the calls that the running
-- turn waits for, where it does, the reply that it goes on with, or ''}. A turn that was removed has 'removed' for its record, and the seq of that for its message.
local conversation, journal = KEYS[1], KEYS[2]
local after, left, most = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]) or math.huge
local AT_ONCE = 16 -- events: what is read beyond the bound
local facts = redis.call('HMGET', conversation, 'epoch', 'seq', 'running', 'queue', 'ended', 'ended_seq')
if not facts[1] then return false end
local seq, running = tonumber(facts[2]), facts[3] or ''
local record = running ~= '' and redis.call('HGET', conversation, 'turn:' .. running)
local follow = running ~= '' and not record and redis.call('HGET', conversation, 'follow')
local awaited = follow and CALLS(conversation, string.match(follow, '^[^\n]*')) or {}
local oldest, events, bytes = nil, {}, 0
if redis.call('TYPE', journal).ok == 'stream' then
  oldest = redis.call('XRANGE', journal, '-', '+', 'COUNT', 1)[1]
  local from, page = ARGV[1] .. '-0', nil
  repeat
    page = redis.call('XRANGE', journal, '(' .. from, '+', 'COUNT', AT_ONCE)
    for _, row in ipairs(page) do
      from, bytes, events[#events + 1] = row[1], bytes + #row[2][2], row[2][2]
    end
  until #page < AT_ONCE or bytes > most
end
local first = oldest and tonumber(string.match(oldest[1], '^%d+')) or seq + 1
local going = record and string.sub(record, 1, 1) == '[' and cjson.decode(record)
local base = going and type(going[11]) == 'table' and redis.call('HGET', conversation, 'message:' .. going[4]) or ''
local answer = {facts[1], seq, running, record or '', first, tonumber(facts[6]) or 0, first, events, {}, 0, awaited, base}
if bytes > most then
  answer[8], answer[10] = {}, 1
  return answer
end
if after + 1 >= first or not facts[6] then
  if answer[6] + 1 >= first then answer[7] = 1 end
  return answer
end

local rows = answer[9]
-- The message and the reply of a turn.
local function ENDS_OF(kept)
  local short = cjson.decode(string.match(kept, '^[^\n]*\n(.*)$') or kept)
  return {short[3], short[4]}
end
local function TOLD(turn_id, kept, message, reply)
  for _, part in ipairs({turn_id, kept, message or '', reply or ''}) do rows[#rows + 1] = part end
  left = left - #kept - #(message or '') - #(reply or '')
  for _, id in ipairs(kept == 'removed' and {'', ''} or ENDS_OF(kept)) do
    local calls = id == '' and {} or CALLS(conversation, id)
    for _, part in ipairs(calls) do left = left - #part end
    rows[#rows + 1] = calls
  end
end

-- Those without an end, which were accepted behind others.
for turn_id in string.gmatch(running .. ' ' .. (facts[4] or ''), '%S+') do
  local kept = redis.call('HGET', conversation, 'turn:' .. turn_id)
  if kept and string.sub(kept, 1, 1) == '[' then
    TOLD(turn_id, kept, redis.call('HGET', conversation, 'message:' .. cjson.decode(kept)[3]), '')
  end
end

local link = facts[5] or ''
while true do
  if link == '' then
    answer[7] = 1
    return answer
  end
  local turn_id, before, ended, kept = string.sub(link, 2), nil, nil, nil
  if string.sub(link, 1, 1) == 'r' then
    ended, before = string.match(redis.call('HGET', conversation, 'removed:' .. turn_id) or '', '^(%d+) (%S*)$')
  else
    before, kept = string.match(redis.call('HGET', conversation, 'turn:' .. turn_id) or '', '^([^\n]*)\n(.*)$')
    kept = kept and cjson.decode(kept)
    ended = kept and kept[7][1]
  end
  ended = tonumber(ended)
  if not ended then return answer end -- a link is lost
  if ended <= after or left <= 0 then
    answer[7] = ended + 1
    return answer
  end
  if not kept then
    if ended < first then TOLD(turn_id, 'removed', string.format('%d', ended)) end
  elseif kept[6] < first then
    local messages = redis.call('HMGET', conversation, 'message:' .. kept[3], 'message:' .. kept[4])
    TOLD(turn_id, redis.call('HGET', conversation, 'turn:' .. turn_id), messages[1], messages[2])
  end
  link = before
end
