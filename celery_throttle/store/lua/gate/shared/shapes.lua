-- Shapes: what stored objects have to be. What is not so was not written by this library, or has changed
-- since: no other function looks at a value before `readable` has.
local NUMBERS_END = 1000000000000000

-- Of a kind of object the parts that have to be there, and what each part is. Others are anything that can be
-- written again: NaN is read and cannot.
local function made_shape(kind)
  if kind == 'record' then return { required = { 'needs', 'queue', 'ticket' }, parts = {
    needs = 'needs', queue = 'name', ticket = 'number', attempt = 'whole', nonce = 'text', since = 'number',
    place = 'number', turn = 'turn', deadline = 'number', dropped = 'text', deliveries = 'whole',
    lock = 'plan', code = 'text', told = 'counts', unacked = 'counts', moves = 'whole',
  } } end
  if kind == 'worker' then return { required = { 'number' }, parts = {
    number = 'number', since = 'number', asked = 'answer', parked = 'answer', granted = 'answer',
    unsure = 'texts', withdrawn = 'answer', newest = 'newest', clock_off = 'number', broker = 'text',
    till = 'number',
  } } end
  if kind == 'lane' then return { required = {}, parts = {
    at = 'name', rank = 'rank', came = 'rank', ticket = 'rank', offered = 'number', pass_ms = 'number',
  } } end
  if kind == 'plan' then return {
    required = { 'identity', 'first', 'claim', 'lock_until', 'on_conflict', 'ttl_ms', 'verdict' }, parts = {
    identity = 'name', first = 'text', claim = 'digits', lock_until = 'text', on_conflict = 'text',
    remember_ms = 'number', ttl_ms = 'number', verdict = 'verdict', fence = 'digits', asked = 'text',
  } } end
  return rare_shape(kind)
end

local function rare_shape(kind)
  if kind == 'lock' then return {
    required = { 'state', 'task', 'claim', 'fence', 'since', 'floor', 'awaited' }, parts = {
    state = 'state', task = 'text', claim = 'digits', fence = 'digits', since = 'number', floor = 'number',
    awaited = 'whole', nonce = 'text', next = 'text', next_claim = 'digits', next_till = 'number',
  } } end
  if kind == 'rule' then
    return { required = { 'permits' }, parts = { permits = 'whole', rates = 'rates', max_parked = 'whole' } }
  end
  if kind == 'newest' then
    return { required = { 'came', 'ticket' }, parts = { came = 'number', ticket = 'number' } }
  end
  if kind == 'aside' then return { required = { 'why', 'since', 'record' }, parts = {
    why = 'text', since = 'number', record = 'text', key = 'text',
  } } end
  return { required = { 'number', 'at', 'action' }, parts = {
    number = 'digits', at = 'number', action = 'text', tasks = 'whole',
  } }
end

-- The first part of an object that is not what it has to be; nil if all are.
local function wrong_part(object, kind)
  if type(object) ~= 'table' then return kind end
  local shape = state.shapes[kind] or made_shape(kind)
  for _, name in ipairs(shape.required) do
    if object[name] == nil then return name end
  end
  state.shapes[kind] = shape
  local parts = shape.parts
  for name, value in pairs(object) do
    local what, fine = parts[name], true
    -- Those that are in each record; a call of a function costs more than the rest.
    if what == 'text' then fine = type(value) == 'string'
    elseif what == 'number' then
      fine = type(value) == 'number' and value > -NUMBERS_END and value < NUMBERS_END
    elseif what == 'name' then fine = type(value) == 'string' and not string.find(value, '%z')
    elseif what == 'needs' then fine = type(value) == 'string' and not needs_of(value).wrong
    elseif what == 'rank' then fine = type(value) == 'string' and #value == 16 and is_digits(value)
    elseif what == 'answer' then fine = true -- see is_answer_to
    elseif what then fine = is_a(value, what)
    elseif type(value) == 'number' then fine = value > -math.huge and value < math.huge
    elseif type(value) == 'table' then fine = pcall(cjson.encode, value)
    end
    if not fine then return name end
  end
  return nil
end
