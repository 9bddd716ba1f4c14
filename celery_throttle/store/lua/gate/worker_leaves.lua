-- Deregister a worker, and forget its data. The number of its last call is kept for an hour, because a copy
-- of a call may still be on the way, on a dead connection. Such a copy is overtaken by this script.
-- KEYS, ARGV[1] as in shared/begin.lua; then the name of the worker.
-- Returns 1.
local GONE_MS = 3600000
redis.call('ZREM', LEASES, '')
local name = argument()
local worker = id_of(name)
local before = load_worker(worker)
-- The worker has acknowledged the messages that it parked last, except for those that it has reported.
state.confirms = before.confirms or {}
confirm_copies(worker)
-- A number between that call and the next, so that the worker can still call again.
redis.call('HSET', WORKERS, worker, cjson.encode({ number = math.floor(before.number) + 0.5, since = NOW }))
redis.call('ZADD', ENDS, NOW + GONE_MS, 'workers:' .. worker)
redis.call('HDEL', META, 'declared:' .. name, 'lost:' .. name)
redis.call('ZREM', ENDS, 'meta:declared:' .. name, 'meta:lost:' .. name)
return 1
