-- Tell how many wait for a bucket.
-- KEYS, ARGV[1] as in shared/begin.lua; then bucket.
-- Returns how many parked tasks need permits of it.
return tonumber(redis.call('HGET', WAITING, argument()) or 0) or 0
