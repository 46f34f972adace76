-- Events of running turns enter their journals, each once, in order, and go to the replicas that watch.
-- KEYS: conversation hash and journal stream of each turn. ARGV: replica; then for each turn its id (the fencing token),
-- the number of its events, and seq, event and patch of each.
-- A patch is '' or JSON: what else the event changes ('set': fields and values; 'unset': fields; 'children': parents and what hangs below
-- them from now on; 'begun': a turn, before whose leaf another one was active; 'refused': such a turn that leaves, its message
-- and its reply; 'messages': how many more; 'reply': a message, its reply and that one's text; 'take_out': a message
-- and its reply; 'ended': a turn and its record; 'removed': a turn that left; 'over': no turn runs from here on, and the journal is
-- kept for that many milliseconds).
-- Answers for each turn 'lost' (it is no longer the caller's), 'behind' (the store has lost what it had), 'ok' and who
-- watches, or an error, which is that turn's alone.
local replica = ARGV[1]

local function PATCH(conversation, journal, patch, seq)
  if patch.begun then
    NOTE_LEAF(conversation, patch.begun)
    local left = redis.call('PTTL', conversation) -- what it shows is kept until its turn comes
    if left > 0 then redis.call('PEXPIRE', conversation .. ':images', left) end
  end
  if patch.set then redis.call('HSET', conversation, unpack(patch.set)) end
  if patch.unset then redis.call('HDEL', conversation, unpack(patch.unset)) end
  for _, pair in ipairs(patch.children or {}) do ADD_CHILD(conversation, pair[1], pair[2]) end
  if patch.messages then redis.call('HINCRBY', conversation, 'messages', patch.messages) end
  if patch.reply then ADD_REPLY(conversation, unpack(patch.reply)) end
  local function TAKE_OUT_IF_ASKED()
    if patch.take_out then TAKE_OUT(conversation, unpack(patch.take_out)) end
  end
  if patch.refused then
    local turn_id, message_id, reply_id = unpack(patch.refused)
    WITH_LEAF_BEFORE(conversation, turn_id, message_id, reply_id, TAKE_OUT_IF_ASKED)
  else
    TAKE_OUT_IF_ASKED()
  end
  if patch.ended then LINK_END(conversation, patch.ended[1], seq, patch.ended[2]) end
  if patch.removed then LINK_REMOVAL(conversation, patch.removed, seq) end
  if patch.over then redis.call('PEXPIRE', journal, patch.over) end
end

local function APPEND(conversation, journal, first, last)
  local facts = redis.call('HMGET', conversation, 'running', 'seq', 'watchers')
  if facts[1] ~= ARGV[first] then return 'lost' end
  local seq = tonumber(facts[2])
  local alone = not facts[3] or facts[3] == '' or facts[3] == replica
  for i = first + 2, last, 3 do
    local next_seq = tonumber(ARGV[i])
    if next_seq > seq then
      if next_seq ~= seq + 1 then return 'behind' end
      local patch = ARGV[i + 2] ~= '' and cjson.decode(ARGV[i + 2])
      if patch then NUMBER(redis.call('HGET', conversation, 'messages'), 'messages') end
      if patch and patch.over then CLEAR_WAY(journal, next_seq) end
      redis.call('XADD', journal, ARGV[i] .. '-0', 'event', ARGV[i + 1])
      if patch then PATCH(conversation, journal, patch, next_seq) end
      if not alone then TELL(conversation, replica, 'event', ARGV[i + 1]) end
      seq = next_seq
      redis.call('HSET', conversation, 'seq', ARGV[i])
    end
  end
  return alone and 'ok' or 'ok ' .. facts[3]
end

local answers, first = {}, 2
for turn = 1, #KEYS / 2 do
  local last = first + 1 + 3 * tonumber(ARGV[first + 1])
  local done, answer = pcall(APPEND, KEYS[2 * turn - 1], KEYS[2 * turn], first, last)
  if done then
    answers[turn] = answer
  else
    answers[turn] = redis.error_reply(type(answer) == 'table' and answer.err or tostring(answer))
  end
  first = last + 1
end
return answers
