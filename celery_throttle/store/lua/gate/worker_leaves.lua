-- A worker says goodbye: what only it needed goes. The number of its last call is known for an hour, since a
-- copy of it may still be on the way, on a connection that is gone: that one is overtaken by the goodbye.
-- KEYS, ARGV[1] as in shared/begin.lua; then the worker's name.
-- Returns 1.
local GONE_MS = 3600000
redis.call('ZREM', LEASES, '')
local name = argument()
local worker = id_of(name)
local before = load_worker(worker)
-- It has acknowledged at the broker what it parked last, but for what it has said.
state.confirms = before.confirms or {}
confirm_copies(worker)
-- Between that call and the next, should there be something to say all the same.
redis.call('HSET', WORKERS, worker, cjson.encode({ number = math.floor(before.number) + 0.5, since = NOW }))
redis.call('ZADD', ENDS, NOW + GONE_MS, 'workers:' .. worker)
redis.call('HDEL', META, 'declared:' .. name, 'lost:' .. name)
redis.call('ZREM', ENDS, 'meta:declared:' .. name, 'meta:lost:' .. name)
return 1
