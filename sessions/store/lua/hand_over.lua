-- A conversation that was adopted leaves its client; another one that came under its name meanwhile stays.
-- KEYS: conversation hash, journal stream. ARGV: epoch.
local facts = redis.call('HMGET', KEYS[1], 'running', 'epoch')
if facts[1] == 'adoption' and facts[2] == ARGV[1] then redis.call('UNLINK', KEYS[1], KEYS[2]) end
return 'ok'
