-- Counts a message where every limit has room for it, and nothing where one has not.
-- KEYS: one for each limit. ARGV: for each of them its kind and its number.
-- Answers 1 or 0 (counted or not), then for each limit what is counted and the milliseconds until there is more room.
-- Messages: a list of the times of those of the last minute. Tokens: a number that expires at midnight, UTC.
local MINUTE, DAY = 60000, 86400000
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function messages(key, limit)
  local oldest = redis.call('LINDEX', key, 0)
  while oldest and tonumber(oldest) <= now - MINUTE do
    redis.call('LPOP', key)
    oldest = redis.call('LINDEX', key, 0)
  end
  local used = redis.call('LLEN', key)
  local first = redis.call('LINDEX', key, math.max(0, used - limit)) or now
  return used, first + MINUTE - now
end

local function tokens(key)
  return tonumber(redis.call('GET', key) or 0), DAY - now % DAY
end

local counted, resets, room = {}, {}, 1
for number, key in ipairs(KEYS) do
  local kind, limit = ARGV[2 * number - 1], tonumber(ARGV[2 * number])
  local read = kind == 'messages' and messages or tokens
  counted[number], resets[number] = read(key, limit)
  if counted[number] >= limit then room = 0 end
end

local answer = {room}
for number, key in ipairs(KEYS) do
  if room == 1 and ARGV[2 * number - 1] == 'messages' then
    counted[number] = redis.call('RPUSH', key, now)
    redis.call('PEXPIRE', key, MINUTE)
  end
  table.insert(answer, counted[number])
  table.insert(answer, resets[number])
end
return answer
