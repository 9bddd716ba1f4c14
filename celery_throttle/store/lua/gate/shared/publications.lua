-- Publications: a task id may be published again and again. Each publication has a name, if it is known,
-- which a retry keeps. Messages of one publication and one attempt are copies of each other.

-- Return the name of a message: its attempt, with its publication if that is known: '0', '0 pxD3k1Zq'.
local function message_of(delivery)
  local attempt = string.format('%.0f', delivery.attempt or 0)
  return delivery.publication and attempt .. ' ' .. delivery.publication or attempt
end

-- Return whether two messages of one attempt may be copies of each other. A task that runs once is the same
-- task under any publication.
local function may_be_copies(record, arrival)
  local one, other = record.publication, arrival.publication
  if not one or not other or one == other then return true end
  return record.lock ~= nil and arrival.lock ~= nil and record.lock.identity == arrival.lock.identity
end

-- Return whether the record of this task is that of another publication, which goes first.
local function is_of_another(record, arrival)
  return arrival.attempt <= (record.attempt or 0) and not may_be_copies(record, arrival)
end

-- Return whether this is a name as message_of returns it.
local function is_message(name)
  local attempt, publication = string.match(name, '^(%d+)(.*)$')
  if not attempt or not is_digits(attempt) then return false end
  return publication == '' or string.find(publication, '^ [^/]+$') ~= nil
end
