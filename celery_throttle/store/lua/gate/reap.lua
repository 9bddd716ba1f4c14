-- Clear expired holders, oldest first, and hint to the workers that can start what waited for their permits.
-- KEYS, ARGV[1] as in shared/begin.lua; then how many at most.
-- Returns { wait_ms, { row of shared/holders.lua, ... } }: as many as asked for means that there may be more;
-- wait_ms: holders have so long to renew, since nobody could for long (0: they have not).
redis.call('ZREM', LEASES, '')
reap_all(number())
-- Not both at once, which would take long.
reap_ends(#state.reclaimed > 0 and 4 or 40)
settle()
if #state.reclaimed == 0 then
  check_some(8)
  check_counts(USED, 'used', holders_counted(100))
end
serve()
return { state.away and MOMENT_MS or 0, state.reclaimed }
