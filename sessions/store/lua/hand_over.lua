-- A conversation that was adopted leaves its client.
-- KEYS: conversation hash, journal stream.
if redis.call('HGET', KEYS[1], 'running') == 'adoption' then redis.call('UNLINK', KEYS[1], KEYS[2]) end
return 'ok'
