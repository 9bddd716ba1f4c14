-- A task that has begun goes back to the head of its line, since the outside said that it is asked too often; its limits
-- start nothing for a while.
-- KEYS, ARGV[1..4] as in common.lua (slots 0); then task id, nonce, limit, permits, attempt, queue, message, lock, more (as in
-- park.lua), how long nothing is started (ms), n, n limits that this is about.
-- Returns { 1, {}, wait_ms, more, emptied } as exchange.lua. The first write needs memory: a full store refuses the call whole.
local task, nonce, limit, permits, attempt = argument(), argument(), argument(), argument(), tonumber(argument())
local queue, message, spec, needs = argument(), argument(), decoded(argument()), unpacked(argument())
local pause_ms = tonumber(argument())
open_rules()
local record = load_record(task)
local ours = record and record[STATE] == 'H' and record[NONCE] == nonce

-- Its lease ended meanwhile, or the store was emptied: what the store has is newer.
if record and not ours then return { 1, {}, 0, 0, {} } end
redis.call('HSET', MESSAGES, task, message)
if ours then
  local free_again = record[MORE] and record[MORE].n or { { record[LIMIT], 1 } }
  for _, need in ipairs(free_again) do joined[#joined + 1] = need[1] end
  unhold(task, record)
  if record[LOCK] then lock_ends(task, record, nonce, 'retry') end
else
  if limit ~= '' then declare_limit(limit, permits) end
  if needs and needs.n then declare_needs(needs.n) end
  record = { 'P', '', limit, attempt, '', queue, 0, spec or needs and false, needs }
end
if record[MORE] then record[MORE].d = nil end

for _ = 1, tonumber(argument()) do
  local name = argument()
  local control = load_control(name)
  local till = NOW + pause_ms
  if not control.hold or control.hold[2] < till then
    control.hold = { 0, till, task, 'rate limited', NOW }
    save_control(name, control)
  end
end

record[TICKET] = string.format('-%015.0f', redis.call('HINCRBY', META, 'ticket', 1))
record[QUEUE] = queue
enqueue(task, record)
joined[#joined + 1] = line_of(record)
for _, line in ipairs(joined) do promote(line) end
return { 1, grants, wait_ms, more, emptied }
