-- Shapes: what stored objects have to be. What is not so was not written by this library, or has changed
-- since: no other function looks at a value before `readable` has.
local NUMBERS_END = 1000000000000000

-- Of a kind of object the parts that have to be there, and what each part is. Others are anything that can be
-- written again: NaN is read and cannot.
local function made_shape(kind)
  if kind == 'record' then return { required = { 'needs', 'queue', 'ticket' }, parts = {
    needs = 'string', queue = 'string', ticket = 'number', attempt = 'whole', nonce = 'string',
    since = 'number',
    place = 'number', turn = 'turn', deadline = 'number', dropped = 'string', deliveries = 'whole',
    lock = 'plan', code = 'string', told = 'counts', unacked = 'counts', moves = 'whole',
  } } end
  if kind == 'worker' then return { required = { 'number' }, parts = {
    number = 'number', since = 'number', asked = 'answer', parked = 'answer', granted = 'answer',
    unsure = 'texts', withdrawn = 'answer', newest = 'newest', clock_off = 'number', broker = 'string',
    till = 'number',
  } } end
  if kind == 'lane' then return { required = {}, parts = {
    at = 'name', rank = 'rank', came = 'rank', ticket = 'rank', offered = 'number', pass_ms = 'number',
  } } end
  if kind == 'plan' then return {
    required = { 'identity', 'first', 'claim', 'lock_until', 'on_conflict', 'ttl_ms', 'verdict' }, parts = {
    identity = 'name', first = 'string', claim = 'digits', lock_until = 'string', on_conflict = 'string',
    remember_ms = 'number', ttl_ms = 'number', verdict = 'verdict', fence = 'digits', asked = 'string',
  } } end
  return rare_shape(kind)
end

local function rare_shape(kind)
  if kind == 'lock' then return {
    required = { 'state', 'task', 'claim', 'fence', 'since', 'floor', 'awaited' }, parts = {
    state = 'state', task = 'string', claim = 'digits', fence = 'digits', since = 'number', floor = 'number',
    awaited = 'whole', nonce = 'string', next = 'string', next_claim = 'digits', next_till = 'number',
  } } end
  if kind == 'rule' then
    return { required = { 'permits' }, parts = { permits = 'whole', rates = 'rates', max_parked = 'whole' } }
  end
  if kind == 'newest' then
    return { required = { 'came', 'ticket' }, parts = { came = 'number', ticket = 'number' } }
  end
  if kind == 'aside' then return { required = { 'why', 'since', 'record' }, parts = {
    why = 'string', since = 'number', record = 'string', key = 'string',
  } } end
  return { required = { 'number', 'at', 'action' }, parts = {
    number = 'digits', at = 'number', action = 'string', tasks = 'whole',
  } }
end

-- The first part of an object that is not what it has to be; nil if all are. This is done for each record in
-- each call: what a part is by its type alone is looked at here.
local function wrong_part(object, kind)
  if type(object) ~= 'table' then return kind end
  local shape = state.shapes[kind] or made_shape(kind)
  state.shapes[kind] = shape
  local required, parts = shape.required, shape.parts
  for i = 1, #required do
    if object[required[i]] == nil then return required[i] end
  end
  for name, value in pairs(object) do
    local what, its = parts[name], type(value)
    if its == 'number' then
      local fine = not what or what == 'number' or what == 'whole' and value >= 0 and value % 1 == 0
      if not fine or not (value > -NUMBERS_END and value < NUMBERS_END) then return name end
    elseif its ~= what and not is_part(value, its, what) then
      return name
    end
  end
  if kind == 'record' then
    if needs_of(object.needs).wrong then return 'needs' end
    if string.find(object.queue, '%z') then return 'queue' end
  end
  return nil
end

local function is_part(value, its, what)
  if what == 'answer' then return true end -- see is_answer_to
  if what == 'number' or what == 'whole' or what == 'string' then return false end
  if what then return is_a(value, what) end
  return its ~= 'table' or (pcall(cjson.encode, value))
end
