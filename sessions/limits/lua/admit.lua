-- Counts a message where every limit has room for it, and nothing where one has not. Asked again about the same message
-- it counts nothing more and says the same.
-- KEYS: one for each limit. ARGV: the message's number, then for each limit its kind and its number.
-- Answers 1 or 0 (counted or not), then for each limit what is counted and the milliseconds until there is more room.
-- Messages: those of the last minute by their times. Tokens, and messages of today: a number that expires at midnight, UTC.
-- Those of today stand beside messages of the last minute, by which a message is known again.
local MINUTE, DAY = 60000, 86400000
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local message = ARGV[1]
local known = false

local function messages(key, limit)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now - MINUTE)
  if redis.call('ZSCORE', key, message) then known = true end
  local used = redis.call('ZCARD', key)
  local place = math.max(0, used - limit)
  local first = redis.call('ZRANGE', key, place, place, 'WITHSCORES')[2] or now
  return used, first + MINUTE - now
end

local function today(key)
  return tonumber(redis.call('GET', key) or 0), DAY - now % DAY
end

local counted, resets, room = {}, {}, 1
for number, key in ipairs(KEYS) do
  local kind, limit = ARGV[2 * number], tonumber(ARGV[2 * number + 1])
  local read = kind == 'messages' and messages or today
  counted[number], resets[number] = read(key, limit)
  if counted[number] >= limit then room = 0 end
end
if known then room = 1 end

local answer = {room}
for number, key in ipairs(KEYS) do
  if room == 1 and not known and ARGV[2 * number] == 'messages' then
    redis.call('ZADD', key, now, message)
    redis.call('PEXPIRE', key, MINUTE)
    counted[number] = counted[number] + 1
  end
  if room == 1 and not known and ARGV[2 * number] == 'today' then
    counted[number] = redis.call('INCRBY', key, 1)
    redis.call('EXPIREAT', key, (math.floor(time[1] / 86400) + 1) * 86400)
  end
  table.insert(answer, counted[number])
  table.insert(answer, resets[number])
end
return answer
