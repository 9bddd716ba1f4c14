-- Count the tasks that wait for a bucket.
-- KEYS, ARGV[1] as in shared/begin.lua; then bucket.
-- Returns the number of parked tasks that need its permits.
return tonumber(redis.call('HGET', WAITING, argument()) or 0) or 0
