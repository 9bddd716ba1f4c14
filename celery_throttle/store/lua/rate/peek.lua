-- Return the answer that take.lua would give, and change nothing.
-- KEYS, ARGV as in bookings.lua.
-- Returns { allowed, now (us), start (us), then for each rate the end of its bookings: us, parts }.
local bookings = read_bookings()
return answer(bookings.start_us <= latest_us, bookings.start_us, bookings.rates)
