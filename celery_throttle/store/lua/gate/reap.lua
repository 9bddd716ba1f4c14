-- Reclaim expired holders, oldest first, and hint to the workers that can start a task with their permits.
-- KEYS, ARGV[1] as in shared/begin.lua; then how many at most.
-- Returns { wait_ms, { row of shared/holders.lua, ... } }. There may be more if there are as many rows as
-- asked for. wait_ms: how long holders have to renew after an outage (0: there was none).
redis.call('ZREM', LEASES, '')
reap_all(number())
-- Clear few fields after reclaiming, because both together would take long.
reap_ends(#state.reclaimed > 0 and 4 or 40)
if #state.reclaimed == 0 then
  check_some(8)
  check_counts(USED, 'used', holders_counted(100))
end
serve()
return { state.away and MOMENT_MS or 0, state.reclaimed }
