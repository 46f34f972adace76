-- Counts what a door keeps beside a turn among all that it keeps for the turn's owner. Of more than may be, the oldest leave.
-- What was deleted counts on until it is the oldest: to find it would take a look at all.
-- KEYS: list of the owner, each row 'bytes of it and all before' 'its own' 'its name'. ARGV: name, bytes, most bytes, ttl.
-- Answers the names that leave. A repetition answers none.
local rows, name, bytes, most, ttl = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local function row(place)
  local found = redis.call('LINDEX', rows, place)
  if not found then return 0, 0 end
  local sum, own, whose = string.match(found, '^(%d+) (%d+) (.*)$')
  return tonumber(sum), tonumber(own), whose
end

local sum, _, newest = row(-1)
if newest == name then return {} end
sum = sum + bytes
redis.call('RPUSH', rows, string.format('%.0f %.0f %s', sum, bytes, name))
redis.call('PEXPIRE', rows, ttl)
local gone = {}
local upto, own, oldest = row(0)
while sum - upto + own > most and upto < sum do
  redis.call('LPOP', rows)
  gone[#gone + 1] = oldest
  upto, own, oldest = row(0)
end
return gone
