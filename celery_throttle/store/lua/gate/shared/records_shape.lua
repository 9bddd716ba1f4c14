-- Shapes of records, workers and lanes, which are read in each call: part by part, as shapes.lua has others.

local function wrong_in_record(record)
  local needs, queue, nonce, since = record.needs, record.queue, record.nonce, record.since
  if type(needs) ~= 'string' or needs_of(needs).wrong then return 'needs' end
  if type(queue) ~= 'string' or string.find(queue, '%z') then return 'queue' end
  if type(record.ticket) ~= 'number' then return 'ticket' end
  if nonce ~= nil and type(nonce) ~= 'string' then return 'nonce' end
  if since ~= nil and type(since) ~= 'number' then return 'since' end
  local place, deadline, code = record.place, record.deadline, record.code
  if place ~= nil and type(place) ~= 'number' then return 'place' end
  if deadline ~= nil and type(deadline) ~= 'number' then return 'deadline' end
  if code ~= nil and type(code) ~= 'string' then return 'code' end
  local lock, told, turn = record.lock, record.told, record.turn
  if lock ~= nil and wrong_by_shape(lock, 'plan') then return 'lock' end
  if told ~= nil and not is_list(told, 'counts') then return 'told' end
  if turn ~= nil and not is_turn(turn) then return 'turn' end
  return wrong_in_odd_record(record)
end

-- What few records have.
local function wrong_in_odd_record(record)
  local attempt, deliveries, moves = record.attempt, record.deliveries, record.moves
  if attempt ~= nil and not is_a(attempt, 'whole') then return 'attempt' end
  if deliveries ~= nil and not is_a(deliveries, 'whole') then return 'deliveries' end
  if moves ~= nil and not is_a(moves, 'whole') then return 'moves' end
  if record.dropped ~= nil and type(record.dropped) ~= 'string' then return 'dropped' end
  if record.dropped_at ~= nil and type(record.dropped_at) ~= 'number' then return 'dropped_at' end
  if record.unacked ~= nil and not is_list(record.unacked, 'counts') then return 'unacked' end
  return nil
end

-- Of its answer see is_answer_to.
local function wrong_in_worker(worker)
  local since, till, broker, clock_off = worker.since, worker.till, worker.broker, worker.clock_off
  if type(worker.number) ~= 'number' then return 'number' end
  if since ~= nil and type(since) ~= 'number' then return 'since' end
  if till ~= nil and type(till) ~= 'number' then return 'till' end
  if broker ~= nil and type(broker) ~= 'string' then return 'broker' end
  if clock_off ~= nil and type(clock_off) ~= 'number' then return 'clock_off' end
  if worker.unsure ~= nil and not is_list(worker.unsure, 'texts') then return 'unsure' end
  if worker.newest ~= nil and wrong_by_shape(worker.newest, 'newest') then return 'newest' end
  return nil
end

local function wrong_in_lane(lane)
  local offered, pass_ms = lane.offered, lane.pass_ms
  if lane.at ~= nil and not is_a(lane.at, 'name') then return 'at' end
  if lane.rank ~= nil and not is_a(lane.rank, 'rank') then return 'rank' end
  if lane.came ~= nil and not is_a(lane.came, 'rank') then return 'came' end
  if lane.ticket ~= nil and not is_a(lane.ticket, 'rank') then return 'ticket' end
  if offered ~= nil and type(offered) ~= 'number' then return 'offered' end
  if pass_ms ~= nil and type(pass_ms) ~= 'number' then return 'pass_ms' end
  return nil
end
