-- Say something of a limit, or of one key of it, at run time; or take it back.
-- KEYS, ARGV[1..4] as in common.lua (slots 0); then limit (or limit \31 key), what is said ('override', 'pause', 'disable'),
-- value ('': take it back; permits for an override, else 1), until ('0': for good, '+ms': for so long, or ms), by, why.
-- Returns { 1, now (us) }: done, 0: there was nothing to take back, or -1: that time is over. The time names the change in
-- wake.lua, which is to be called after this one.
local limit, name, value, till, by, why = argument(), argument(), argument(), argument(), argument(), argument()
open_rules()
-- The first write is never refused, so that a pause can be ended also while the store is full.
redis.call('ZREM', LEASES, '')

local now_us = string.format('%.0f', clock[1] * 1000000 + clock[2])
local until_ms = tonumber(till)
if string.sub(till, 1, 1) == '+' then until_ms = NOW + until_ms end
if value ~= '' and until_ms ~= 0 and until_ms <= NOW then return { -1, now_us } end

-- Whoever says something clears some of what has ended.
reap_locks(4)
local control = load_control(limit)
local before = control[name]
control[name] = value ~= '' and { tonumber(value), until_ms, by, why, NOW } or nil
save_control(limit, control)
if value == '' and not (before and (before[2] == 0 or before[2] > NOW)) then return { 0, now_us } end
return { 1, now_us }
