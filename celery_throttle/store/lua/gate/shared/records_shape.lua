-- Shapes of records, workers and lanes. Each call reads these, so they are checked part by part; shapes.lua
-- has the others.

local function wrong_in_record(record)
  if record.second ~= nil and is_wrong_second(record.second) then return 'second' end
  if record.finished ~= nil and is_wrong_finished(record.finished) then return 'finished' end
  if record.awaited ~= nil and not is_a(record.awaited, 'whole') then return 'awaited' end
  local has_delivery = record.needs ~= nil or record.queue ~= nil or record.ticket ~= nil
  if has_delivery then return wrong_in_delivery(record) end
  return not record.second and not record.finished and not record.awaited and 'needs' or nil
end

local function is_wrong_second(second)
  if type(second) ~= 'table' then return true end
  return unwritable_part(second, 'record') ~= nil or wrong_in_delivery(second) ~= nil
end

local function is_wrong_finished(finished)
  if type(finished) ~= 'table' or not next(finished) then return true end
  for message, out in pairs(finished) do
    if not is_message(message) or not is_list(out, 'counts') then return true end
  end
  return false
end

local function wrong_in_delivery(record)
  local needs, queue, nonce, since = record.needs, record.queue, record.nonce, record.since
  if type(needs) ~= 'string' or needs_of(needs).wrong then return 'needs' end
  if type(queue) ~= 'string' or string.find(queue, '%z') then return 'queue' end
  if type(record.ticket) ~= 'number' then return 'ticket' end
  if nonce ~= nil and type(nonce) ~= 'string' then return 'nonce' end
  if since ~= nil and type(since) ~= 'number' then return 'since' end
  local place, deadline, expires, code = record.place, record.deadline, record.expires, record.code
  if place ~= nil and type(place) ~= 'number' then return 'place' end
  if deadline ~= nil and type(deadline) ~= 'number' then return 'deadline' end
  if expires ~= nil and type(expires) ~= 'number' then return 'expires' end
  if code ~= nil and type(code) ~= 'string' then return 'code' end
  local lock, out, turn = record.lock, record.out, record.turn
  if lock ~= nil and wrong_by_shape(lock, 'plan') then return 'lock' end
  if out ~= nil and not is_list(out, 'counts') then return 'out' end
  if turn ~= nil and not is_turn(turn) then return 'turn' end
  return wrong_in_odd_delivery(record)
end

-- Check the parts that few deliveries have.
local function wrong_in_odd_delivery(record)
  local attempt, deliveries, moves = record.attempt, record.deliveries, record.moves
  if attempt ~= nil and not is_a(attempt, 'whole') then return 'attempt' end
  if deliveries ~= nil and not is_a(deliveries, 'whole') then return 'deliveries' end
  if record.again ~= nil and not is_number(record.again) then return 'again' end
  if record.publication ~= nil and not is_a(record.publication, 'name') then return 'publication' end
  if moves ~= nil and not is_a(moves, 'whole') then return 'moves' end
  if record.dropped ~= nil and type(record.dropped) ~= 'string' then return 'dropped' end
  if record.dropped_at ~= nil and type(record.dropped_at) ~= 'number' then return 'dropped_at' end
  return nil
end

-- The answer of a worker is checked by has_answers.
local function wrong_in_worker(worker)
  local since, till, broker, clock_off = worker.since, worker.till, worker.broker, worker.clock_off
  if type(worker.number) ~= 'number' then return 'number' end
  if since ~= nil and type(since) ~= 'number' then return 'since' end
  if till ~= nil and type(till) ~= 'number' then return 'till' end
  if broker ~= nil and type(broker) ~= 'string' then return 'broker' end
  if clock_off ~= nil and type(clock_off) ~= 'number' then return 'clock_off' end
  if worker.confirms ~= nil and not is_list(worker.confirms, 'texts') then return 'confirms' end
  if worker.sites ~= nil and type(worker.sites) ~= 'table' then return 'sites' end
  if worker.newest ~= nil and wrong_by_shape(worker.newest, 'newest') then return 'newest' end
  return nil
end

local function wrong_in_lane(lane)
  if lane.at ~= nil and not is_a(lane.at, 'name') then return 'at' end
  if lane.rank ~= nil and not is_a(lane.rank, 'rank') then return 'rank' end
  if lane.came ~= nil and not is_a(lane.came, 'rank') then return 'came' end
  if lane.ticket ~= nil and not is_a(lane.ticket, 'rank') then return 'ticket' end
  if lane.place ~= nil and not is_a(lane.place, 'rank') then return 'place' end
  if lane.offered ~= nil and type(lane.offered) ~= 'number' then return 'offered' end
  return nil
end
