-- A ledger counts the bytes that are stored for an owner, or for all owners of a group. Each field is a time (Unix milliseconds)
-- and counts what has expired by then, so that nobody has to report what expires.
local function NOW()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The field for bytes that live for so many milliseconds: late by an eighth of that at most, so a ledger has few fields.
local function FIELD(lifetime)
  local _, exponent = math.frexp(lifetime / 8)
  local width = math.max(1, math.ldexp(1, exponent - 1))
  return math.ceil((NOW() + lifetime) / width) * width
end

-- What a ledger counts now. What has expired leaves it.
local function STORED(ledger)
  local now, sum, fields = NOW(), 0, redis.call('HGETALL', ledger)
  for i = 1, #fields, 2 do
    if tonumber(fields[i]) <= now then
      redis.call('HDEL', ledger, fields[i])
    else
      sum = sum + tonumber(fields[i + 1])
    end
  end
  return sum
end

local function CHARGE(ledger, field, bytes)
  local left = field - NOW()
  if left <= 0 then return end
  field = string.format('%.0f', field)
  if redis.call('HINCRBY', ledger, field, string.format('%.0f', bytes)) <= 0 then redis.call('HDEL', ledger, field) end
  redis.call('PEXPIRE', ledger, string.format('%.0f', math.max(left, redis.call('PTTL', ledger))))
end

-- Counts new bytes in the ledgers from KEYS[key] on, if they fit into each of them.
-- ARGV from `arg` on: bytes, their lifetime in milliseconds (0: they are not counted), the most bytes of each ledger.
-- Returns nothing, or which ledger has no room.
local function ADMIT(key, arg)
  local bytes, lifetime = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1])
  for number = 0, #KEYS - key do
    if STORED(KEYS[key + number]) + bytes > tonumber(ARGV[arg + 2 + number]) then return number + 1 end
  end
  if lifetime > 0 then
    for number = key, #KEYS do CHARGE(KEYS[number], FIELD(lifetime), bytes) end
  end
end
