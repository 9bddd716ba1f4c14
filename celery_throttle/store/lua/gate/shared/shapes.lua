-- Shapes: the form of stored objects. An object of another form was not written by this library, or has
-- changed since. No other function looks at a value before `readable` has.
local NUMBERS_END = 1000000000000000
local WHOLE_END = 9007199254740991

local function is_number(value)
  return type(value) == 'number' and value > -NUMBERS_END and value < NUMBERS_END
end

local function is_digits(text)
  return string.find(text, '^%d+$') ~= nil and #text <= 16 and tonumber(text) <= WHOLE_END
end

local function is_one_of(value, what)
  local words = 'queued running done failed started'
  if what == 'verdict' then words = 'run follow next conclude duplicate skip replaced done' end
  return type(value) == 'string' and string.find(' ' .. words .. ' ', ' ' .. value .. ' ', 1, true) ~= nil
end

-- Return whether a text or number has this form.
local function is_a(value, what)
  if what == 'string' then return type(value) == 'string' end
  if what == 'number' then return is_number(value) end
  if what == 'whole' then return is_number(value) and value >= 0 and value % 1 == 0 end
  if what == 'name' then return type(value) == 'string' and not string.find(value, '%z') end
  if what == 'digits' then return type(value) == 'string' and is_digits(value) end
  if what == 'rank' then return type(value) == 'string' and #value == 16 and is_digits(value) end
  return is_one_of(value, what)
end

-- Return, for a kind of object, the required parts and the form of each part. Any other part is allowed if it
-- can be written again. NaN cannot, although it can be read.
local function made_shape(kind)
  if kind == 'plan' then return {
    required = { 'identity', 'first', 'claim', 'lock_until', 'on_conflict', 'ttl_ms', 'verdict' }, parts = {
    identity = 'name', first = 'string', claim = 'digits', lock_until = 'string', on_conflict = 'string',
    remember_ms = 'number', ttl_ms = 'number', verdict = 'verdict', fence = 'digits', asked = 'string',
  } } end
  if kind == 'lock' then return {
    required = { 'state', 'task', 'claim', 'fence', 'since', 'floor', 'awaited' }, parts = {
    state = 'state', task = 'string', claim = 'digits', fence = 'digits', since = 'number', floor = 'number',
    awaited = 'whole', nonce = 'string', next = 'string', next_claim = 'digits', next_till = 'number',
  } } end
  if kind == 'rule' then
    return { required = { 'permits' }, parts = {
      permits = 'whole', max_parked = 'whole', fair = 'whole', per = 'string', share = 'number',
    } }
  end
  if kind == 'newest' then
    return { required = { 'came', 'ticket' }, parts = { came = 'number', ticket = 'number' } }
  end
  if kind == 'lost' then return { required = { 'runs' }, parts = {} } end
  if kind == 'lost run' then return {
    required = { 'task', 'identity', 'nonce', 'renewed', 'called' }, parts = {
    task = 'string', identity = 'name', nonce = 'string', renewed = 'number', called = 'number',
  } } end
  if kind == 'aside' then return { required = { 'why', 'since', 'record' }, parts = {
    why = 'string', since = 'number', record = 'string', key = 'string',
  } } end
  return { required = { 'number', 'at', 'action' }, parts = {
    number = 'digits', at = 'number', action = 'string', tasks = 'whole',
  } }
end

-- Return the first malformed text or number among the parts of an object; nil if there is none.
local function wrong_by_shape(object, kind)
  if type(object) ~= 'table' then return kind end
  local odd = unwritable_part(object, kind)
  if odd then return odd end
  local shape = state.shapes[kind] or made_shape(kind)
  state.shapes[kind] = shape
  for _, name in ipairs(shape.required) do
    if object[name] == nil then return name end
  end
  for name, what in pairs(shape.parts) do
    if object[name] ~= nil and not is_a(object[name], what) then return name end
  end
  return nil
end

-- Return a part that cannot be written again, such as NaN, which can be read. The stored answers of a worker
-- are not written again. Other functions check the other tables of a record.
local function unwritable_part(object, kind)
  for name, value in pairs(object) do
    local its = type(value)
    if its == 'number' then
      if not (value > -NUMBERS_END and value < NUMBERS_END) then return name end
    elseif its == 'table' and kind ~= 'worker' then
      local looked_at = name == 'lock' or name == 'out' or name == 'turn' or name == 'second'
      if not looked_at and name ~= 'finished' and not pcall(cjson.encode, value) then return name end
    end
  end
  return nil
end
