-- Say how limits stand.
-- KEYS, ARGV[1..4] as in common.lua (slots 0); then n, n x limit (or limit \31 key).
-- Returns { now (ms), rows }, see reading.lua. Writes nothing.
local rows = {}
for i = 1, tonumber(argument()) do rows[i] = standing(argument()) end
return { NOW, rows }
