-- Return how often workers lost the store, or had a call refused, as far as they reported.
-- KEYS, ARGV[1] as in shared/begin.lua.
-- Returns how often. Writes nothing.
state.only_reads = true
return meta_number('errors', STAMPS_END)
