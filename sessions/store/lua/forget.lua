-- A conversation leaves its owner's list, unless it went on since. KEYS: list. ARGV: id, the time that it had there.
local at = redis.call('ZSCORE', KEYS[1], ARGV[1])
if at and tonumber(at) == tonumber(ARGV[2]) then redis.call('ZREM', KEYS[1], ARGV[1]) end
return 'ok'
