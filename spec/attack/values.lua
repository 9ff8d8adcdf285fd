-- What the programs of spec/attack are made of when they run: values that a careless or hostile
-- script may hold, by short names, so that a program's text stays readable.
local dm = require "demilune"

local env = {dm = dm, table = table, setmetatable = setmetatable, pairs = pairs, ipairs = ipairs,
  tostring = tostring, getmetatable = getmetatable, pcall = pcall, error = error, type = type,
  coroutine = coroutine, collectgarbage = collectgarbage, math = math, next = next,
  select = select, F = dm.nn.functional}

-- The values of the program that runs: v[1], v[2], ...
env.v = {}

-- Runs a statement, whatever it raises.
function env.S(f) pcall(f) end

-- Ends a thread whose Lua code goes on for long, such as over a table that grows as it is read.
local STEPS = 1000000
function env.limit(thread)
  debug.sethook(thread, function() error("too long", 0) end, "", STEPS)
  return thread
end

-- Runs it in a coroutine of its own, which is left where it yields the third time.
function env.C(f)
  local thread = env.limit(coroutine.create(f))
  for _ = 1, 3 do
    if not coroutine.resume(thread, env.v[1]) then return end
  end
end

-- ---- tensors ----

local function filled(dtype, shape)
  if dtype == "bool" then return dm.randint(2, shape):gt(0) end
  if dtype:find "int" then return dm.randint(4, shape):to(dtype) end
  return dm.randn(shape, {dtype = dtype})
end

local KINDS = {
  plain = function(x) return x end,
  leaf = function(x) return x:requires_grad_() end,
  inner = function(x) return x:requires_grad_() * 1 end,
  turned = function(x) return x:transpose(1, -1) end,
  wide = function(x) return x:unsqueeze(1):expand(3, table.unpack(x.shape)) end,
  part = function(x) return x:narrow(1, 1, 1) end,
  nan = function(x) return x:fill_(0 / 0) end,
  huge = function(x) return x:fill_(math.huge) end,
  vast = function(x) return x:long():fill_(1 << 62) end, -- int64, whose sums pass 64 bits
  view = function(x) return (x:requires_grad_() * 2):view(-1) end,
  hooked = function(x)
    x:requires_grad_():register_hook(function() env.v[1]:sum():backward() end)
    return x
  end,
  freed = function(x)
    x:free()
    return x
  end,
  scoped = function(x) return dm.scope(function() return {x * 1} end)[1] end,
  frozen = function(x) return dm.inference_mode(function() return x * 1 end) end,
}
env.KINDS = KINDS

-- A tensor of that kind, or the plain one where the kind is not for its dtype or shape.
function env.T(dtype, shape, kind)
  local x = filled(dtype, shape)
  local ok, y = pcall(KINDS[kind], x)
  return ok and y or x
end

-- ---- functions ----

-- Functions to be called back: hooks, closures, methods of a table.
env.FN = {
  same = function(...) return ... end,
  none = function() end,
  raise = function() error "on purpose" end,
  throw = function() error({}) end,
  yield = function(...) return coroutine.yield(...) end,
  rubbish = function() return "rubbish", 7, {} end,
  backward = function(...)
    env.v[1]:sum():backward()
    return ...
  end,
  free = function(...)
    env.v[1]:free()
    return ...
  end,
  exchange = function(...)
    env.v[1].data = dm.zeros(7)
    return ...
  end,
  change = function(...)
    env.v[1]:detach():fill_(3)
    return ...
  end,
  collect = function(...)
    collectgarbage()
    return ...
  end,
  close = function(...)
    for _, w in ipairs(env.v) do pcall(function() w:close() end) end
    return ...
  end,
  double = function(x) return x * 2 end,
  other = function() return dm.ones(5) end,
  deep = function(x, n)
    n = math.type(n) == "integer" and n or 0
    return n < 500 and (env.FN.deep(x, n + 1)) or x
  end,
}

-- ---- tables that answer on their own ----

env.M = {
  grows = function()
    return setmetatable({1, 2}, {__index = function(t, k)
      rawset(t, #t + 1, 1)
      return k
    end, __len = function(t) return rawlen(t) + 1 end})
  end,
  raises = function()
    local function raise() error "on purpose" end
    return setmetatable({}, {__index = raise, __len = raise, __tostring = raise, __pairs = raise,
      __call = raise, __eq = raise, __lt = raise, __add = raise, __concat = raise,
      __newindex = raise, __name = "\0name"})
  end,
  yields = function()
    return setmetatable({1}, {__index = coroutine.yield, __len = coroutine.yield,
      __tostring = coroutine.yield, __call = coroutine.yield, __pairs = coroutine.yield})
  end,
  lies = function()
    return setmetatable({}, {__len = function() return math.maxinteger end,
      __index = function(_, k) return k end, __tostring = function() return 7 end,
      __name = 7, __call = function() return {} end})
  end,
  frees = function()
    return setmetatable({1, 2}, {__index = function(_, k)
      pcall(function() env.v[1]:free() end)
      return k == "dim" and 1 or nil
    end, __pairs = function(t)
      pcall(function() env.v[1].data = dm.ones(9) end)
      return next, t, nil
    end})
  end,
  itself = function()
    local t = {1}
    t[2], t.x = t, t
    return t
  end,
  fake = function() return setmetatable({dtype = "float32", shape = {2}}, {__name = "Tensor"}) end,
  deep = function()
    local t = {}
    for _ = 1, 300 do t = {t} end
    return t
  end,
}

-- ---- objects ----

local Pair = dm.data.Dataset:extend "Pair"
function Pair:len() return self.n or 3 end
function Pair:get(i) return self.item or dm.full({2}, i) end -- luacheck: ignore 212

-- Objects of the library with state of their own.
env.NEW = {
  linear = function() return dm.nn.Linear(3, 3) end,
  sequence = function()
    return dm.nn.Sequential(dm.nn.Linear(3, 3), dm.nn.BatchNorm1d(3), dm.nn.ReLU())
  end,
  circle = function()
    local m = dm.nn.Linear(2, 2)
    m.itself = m
    return m
  end,
  sgd = function()
    local m = dm.nn.Linear(3, 3)
    env.v[1] = m.weight
    return dm.optim.SGD(m:parameters(), {lr = 0.1, momentum = 0.9})
  end,
  adam = function() return dm.optim.Adam({dm.nn.Parameter(dm.ones(2, 3))}, {lr = 0.1}) end,
  scaler = function() return dm.amp.GradScaler{init_scale = 8} end,
  generator = function() return dm.Generator() end,
  scope = function() return dm.scope() end,
  no_grad = function() return dm.no_grad() end,
  region = function() return dm.amp.autocast{dtype = "bfloat16"} end,
  profile = function() return dm.profiler.profile{} end,
  shape = function() return dm.ones(2, 3).shape end,
  set = function() return Pair() end,
  loader = function() return dm.data.DataLoader(Pair(), {batch_size = 2}) end,
  pairs_of = function() return dm.data.TensorDataset(dm.ones(4, 2), dm.arange(4)) end,
  cell = function() return dm.nn.LSTM(3, 3) end,
  normal = function() return dm.distributions.Normal(0, 1) end,
  schedule = function()
    return dm.optim.lr_scheduler.StepLR(dm.optim.SGD({dm.nn.Parameter(dm.ones(2))}, {lr = 1}), 2)
  end,
}

-- ---- calls by number ----

-- The functions of a value's class and metatable by name, those of the library alone.
local function methods_of(x)
  local list, seen = {}, {}
  local function add(t)
    if type(t) ~= "table" or seen[t] then return end
    seen[t] = true
    for name, f in next, t do
      if type(f) == "function" and name ~= "__gc" then list[#list + 1] = {tostring(name), f} end
    end
    local up = rawget(t, "__index")
    if type(up) == "table" then add(up) end
    local meta = debug.getmetatable(t)
    if type(meta) == "table" then add(meta) end
  end
  if type(x) == "table" then add(x) else add(debug.getmetatable(x)) end
  if dm.is_tensor(x) then add(dm.methods) end
  table.sort(list, function(a, b) return a[1] < b[1] end)
  return list
end

-- Calls the n-th method of x with x and more.
function env.O(x, n, ...)
  if x == nil or type(x) == "string" or type(x) == "function" then return end
  local list = methods_of(x)
  if #list > 0 then return list[n % #list + 1][2](x, ...) end
end

-- A finalizer that runs f after Lua has allocated about n bytes more, at most 1000: the collector
-- then runs a whole cycle at once.
function env.A(n, f)
  setmetatable({}, {__gc = function() pcall(f) end})
  collectgarbage("incremental", 1000, 1000, 63)
  collectgarbage "restart" -- counts from here
  collectgarbage("step", -1)
  return ("x"):rep(1024 - n)
end

-- What a program may leave behind, of which the next one shall know nothing.
function env.reset()
  for _, w in ipairs(env.v) do pcall(function() w:close() end) end
  for i in pairs(env.v) do env.v[i] = nil end
  dm.set_grad_enabled(true)
  dm.set_default_dtype "float32"
  dm.set_num_threads(1)
  dm.autograd.set_detect_anomaly(false)
  dm.amp.set_autocast_enabled("cpu", false)
end

return env
