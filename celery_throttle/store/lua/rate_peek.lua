-- Tell what rate_take.lua would answer, and change nothing.
-- KEYS, ARGV as in rate_common.lua.
-- Returns { allowed, now (us), start (us), then for each rate until when it is booked: us, parts }.
return answer(start - NOW <= MAX_WAIT)
