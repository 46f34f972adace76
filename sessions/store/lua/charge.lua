-- Changes what a ledger counts. KEYS: the ledger. ARGV: for each change a field, or a lifetime in milliseconds, and how many bytes
-- more or less. A full store takes this, too: a script whose first write needs no memory may finish.
redis.call('HDEL', KEYS[1], '')
local LONGEST_LIFETIME = 1e12
for i = 1, #ARGV, 2 do
  local field = tonumber(ARGV[i])
  CHARGE(KEYS[1], field < LONGEST_LIFETIME and FIELD(field) or field, tonumber(ARGV[i + 1]))
end
STORED(KEYS[1])
