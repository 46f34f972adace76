-- A ledger counts the bytes that are stored for an owner, or for all owners of a group. Each field is a time (Unix milliseconds)
-- and counts what has expired by then, so that nobody has to report what expires.
local function NOW()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The field for bytes with this lifetime in ms: at most an eighth of it late, so a ledger has few fields.
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

-- How many bytes a hash takes. The store itself reports it, for a large one from a sample of its fields. A user that may not ask it
-- (`MEMORY USAGE`) measures fewer, since each takes longer from here.
local SAMPLED, MEASURED, FIELD_BYTES = 1024, 16, 72

local function SIZE(key)
  local reported = redis.pcall('MEMORY', 'USAGE', key, 'SAMPLES', SAMPLED)
  if type(reported) == 'number' then return reported end
  local fields, bytes = redis.call('HRANDFIELD', key, MEASURED), 0
  for _, field in ipairs(fields) do bytes = bytes + #field + redis.call('HSTRLEN', key, field) + FIELD_BYTES end
  return #fields > 0 and math.ceil(bytes * redis.call('HLEN', key) / #fields) or 0
end

-- Notes in a hash what the ledgers count for it from now on: 'field bytes group'. An empty group: the same one as before.
-- Returns that note as it was ('' if there was none) and as it is.
local function RECHARGE(key, bytes, lifetime, group)
  local before = redis.call('HGET', key, 'charged') or ''
  if group == '' then group = string.match(before, '^%d+ %d+ (.*)$') or '' end
  local after = string.format('%.0f %.0f %s', FIELD(lifetime), bytes, group)
  if after ~= before then redis.call('HSET', key, 'charged', after) end
  return before, after
end

-- Weighs a conversation and its images. Returns {the note before, after} of each.
local function WEIGH(conversation, lifetime, group)
  local images, answer = conversation .. ':images', {}
  answer[1], answer[2] = RECHARGE(conversation, SIZE(conversation), lifetime, group)
  local bytes = redis.call('HGET', images, 'bytes')
  if bytes then answer[3], answer[4] = RECHARGE(images, tonumber(bytes), lifetime, group) end
  return answer
end

-- What the ledgers count for a conversation that is about to be deleted.
local function CHARGED(conversation)
  return redis.call('HGET', conversation, 'charged') or '', redis.call('HGET', conversation .. ':images', 'charged') or ''
end
