-- What this worker holds in the store's eyes, for a worker that may have missed a reply.
-- KEYS, ARGV[1..4] as in common.lua; then worker id (what its nonces begin with).
-- Returns grants as exchange.lua.
open_lines()
local worker = argument()
for _, task in ipairs(redis.call('ZRANGE', LEASES, 0, 9999)) do
  local record = load_record(task)
  if record and string.sub(record[NONCE], 1, #worker) == worker then
    grants[#grants + 1] = grant_of(task, record)
  end
end
return grants
