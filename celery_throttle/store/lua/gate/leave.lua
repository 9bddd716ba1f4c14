-- A worker says goodbye: what only it needed goes. That it did is known for an hour, since a copy of a call
-- of its may still be on the way, on a connection that is gone: that one is overtaken.
-- KEYS, ARGV[1] as in shared/begin.lua; then the worker's name.
-- Returns 1.
local GONE_MS, LAST_CALL = 3600000, 999999999
redis.call('ZREM', LEASES, '')
local worker = id_of(argument())
-- It has acknowledged at the broker what it parked last, but for what it has said.
confirm_parked(load_worker(worker), {})
redis.call('HSET', WORKERS, worker, cjson.encode({ number = LAST_CALL, since = NOW }))
redis.call('ZADD', ENDS, NOW + GONE_MS, 'workers:' .. worker)
return 1
