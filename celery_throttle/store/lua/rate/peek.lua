-- Tell what take.lua would answer, and change nothing.
-- KEYS, ARGV as in bookings.lua.
-- Returns { allowed, now (us), start (us), then for each rate until when it is booked: us, parts }.
local bookings = read_bookings()
return answer(bookings.start_us <= latest_us, bookings.start_us, bookings.rates)
