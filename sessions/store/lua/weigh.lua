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
