-- A worker says goodbye: what only it needed goes.
-- KEYS, ARGV[1] as in shared/begin.lua; then the worker's name.
-- Returns 1.
local worker = id_of(argument())
-- It has acknowledged at the broker what it parked last, but for what it has said.
confirm_parked(load_worker(worker), {})
redis.call('HDEL', WORKERS, worker)
redis.call('ZREM', ENDS, 'workers:' .. worker)
return 1
