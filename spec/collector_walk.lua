-- A finalizer that frees, exchanges and changes what a call reads, at each allocation of Lua in the
-- call: first at its first one, then at its second, until the call ends before the finalizer runs.
-- Every entry of spec/samples.lua is walked, with its backward pass, and what else reads a script's
-- tables and tensors. Nothing may end the process; scripts/test runs this under AddressSanitizer,
-- too. The last line of the output names the call that ran last; at the end it is
-- "N calls, N finalizers". collector_spec.lua runs it:
--   lua5.4 spec/collector_walk.lua STRIDE CALLS
-- tries every STRIDE bytes of Lua's memory (an object takes 24 or more), and of each sample's
-- entries the first CALLS.
local stride, most_calls = math.tointeger(arg[1]), math.tointeger(arg[2])

local dm = require "demilune"
require("demilune.core")._test.without_cuda()
local case = require "spec.case"
local samples = require "spec.samples"
local nn, optim = dm.nn, dm.optim
warn "@off"
require "demilune.caller".sink = function() end

local FILE = os.tmpname()
local scenarios = {}

-- make() gives the tensors and tables that run(them) reads.
local function scenario(name, make, run)
  scenarios[#scenarios + 1] = {name = name, make = make, run = run}
end

-- ---- every op, with its gradient ----

local FLAGS = {"grad", "once", "random", "dense", "pointwise", "plain"}
local function add_sample(name, call, k)
  local is_function = type(rawget(dm, name) or nn.functional[name]) == "function"
  local method = not is_function and not name:match "_$" and dm.methods[name]
  scenario(("%s, sample %d"):format(name, k), function()
    local args = case.decode(dm, call, {grad = true})
    for _, flag in ipairs(FLAGS) do args[flag] = nil end
    return args
  end, function(args)
    for _, y in ipairs(case.call(dm, method and "x:" .. name or name, args)) do
      if dm.is_tensor(y) and y.requires_grad then y:sum():backward() end
    end
  end)
end

local names = {}
for name in pairs(samples) do names[#names + 1] = name end
table.sort(names)
for _, name in ipairs(names) do
  for k, call in ipairs(samples[name]) do
    if k <= most_calls then add_sample(name, call, k) end
  end
end

-- ---- calls that read tables, tensors and objects of a script ----

local function one() return {dm.randn(6, 2)} end
local function leaf() return {dm.randn({6, 2}, {requires_grad = true})} end

for name, run in pairs{
  unbind = function(o) o[1]:unbind() end,
  chunk = function(o) o[1]:chunk(3) end,
  split = function(o) o[1]:split(2) end,
  pairs = function(o) for _, row in pairs(o[1]) do row:add_(1) end end,
  totable = function(o) o[1]:totable() end,
  tostring = function(o) tostring(o[1]) end,
  detach = function(o) o[1]:detach() end,
  data = function(o) o[1].data = o[1].data end,
  properties = function(o) return o[1].shape, o[1].T, o[1].grad, o[1].grad_fn, o[1]:stride() end,
  keep = function(o) dm.scope(function() return dm.keep(o[1] * 2), {o} end) end,
  save = function(o) dm.save(FILE, {a = o[1], b = {o[1]}}) end,
  load = function(o)
    dm.save(FILE, {o[1], {x = o[1]}})
    dm.load(FILE)
  end,
} do scenario(name, one, run) end

scenario("split into sizes", function() return {dm.randn(6, 2), {1, 2, 3}} end, function(o)
  o[1]:split(o[2])
  o[1]:tensor_split(o[2])
end)
scenario("tensor of data", function() return {{{1, 2}, {3, 4}}} end, function(o)
  dm.tensor(o[1], {dtype = "float64", requires_grad = true})
end)
scenario("a list of tensors", function() return {{dm.ones(2), dm.ones(2), dm.ones(2)}} end,
  function(o) return dm.cat(o[1]), dm.stack(o[1]), dm.meshgrid(o[1]) end)
scenario("indexing", function()
  return {dm.randn(4, 5), {{1, 3}, -1}, dm.tensor{2, 4}, dm.tensor{true, false, true, true}}
end, function(o)
  return o[1][1], o[1][o[2]], o[1][o[3]], o[1][o[4]], o[1][{{}, o[3]}]
end)
scenario("assigning", function()
  return {dm.randn(4, 5), {{1, 3}, -1}, dm.tensor{2, 4}, dm.tensor{true, false, true, true},
    dm.ones(5)}
end, function(o)
  o[1][1] = o[5]
  o[1][o[2]] = 3
  o[1][o[3]] = o[5]
  o[1][o[4]] = o[5]
end)
scenario("backward", leaf, function(o)
  local y = (o[1] * 2):retain_grad()
  y:register_hook(function(g) return g * 2 end)
  y:exp():sum():backward()
end)
scenario("backward with a gradient", function()
  return {dm.randn({3}, {requires_grad = true}), dm.ones(3)}
end, function(o) (o[1] * 2):backward{gradient = o[2], create_graph = true} end)
scenario("backward with inputs", leaf, function(o)
  local y = o[1] * 2
  y:sum():backward{inputs = {o[1], y}, retain_graph = true}
  dm.autograd.backward({y:sum(), y}, {nil, dm.ones(y.shape)}, {inputs = o[1]})
end)
scenario("view of a dtype", function() return {dm.randn(3), dm.randn(2, 4)} end, function(o)
  return o[1]:view("int32"):sum() + o[2]:view("int64"):sum()
end)
scenario("autograd.grad", function()
  return {dm.randn({3}, {requires_grad = true}), dm.ones(3)}
end, function(o)
  dm.autograd.grad({o[1] * o[2]}, {o[1]}, {grad_outputs = {o[2]}, create_graph = true})
end)
local Cube = dm.autograd.Function{name = "Cube", forward = function(ctx, x)
  ctx:save_for_backward(x)
  return x * x * x
end, backward = function(ctx, g) return g * ctx:saved_tensors():square() * 3 end}
scenario("a function of one's own", leaf, function(o) Cube(o[1]):sum():backward() end)
scenario("a checkpoint", leaf, function(o)
  nn.utils.checkpoint(function(x) return (x * 2):exp() end, o[1]):sum():backward()
end)
scenario("autocast", function()
  return {dm.randn({3, 3}, {requires_grad = true}), dm.ones(3, 3)}
end, function(o)
  dm.amp.autocast({dtype = "bfloat16"}, function()
    return o[1]:mm(o[2]):mm(o[1]):sum()
  end):backward()
end)

for _, name in ipairs{"SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "LBFGS"} do
  scenario("a step of " .. name, function()
    local p, q = nn.Parameter(dm.ones(2, 3)), nn.Parameter(dm.ones(3))
    return {p, q, optim[name]({p, q}, {lr = 0.1, momentum = name == "SGD" and 0.9 or nil})}
  end, function(o)
    for _ = 1, 2 do
      (o[1]:sum() + o[2]:sum()):backward()
      o[3]:step(name == "LBFGS" and function() return o[1]:sum() end or nil)
      o[3]:zero_grad()
    end
  end)
end
scenario("a scaled step", function()
  local m = nn.Linear(3, 2)
  return {m.weight, m.bias, m, optim.SGD(m:parameters(), {lr = 0.1}),
    dm.amp.GradScaler{init_scale = 8}, dm.ones(1, 3)}
end, function(o)
  o[5]:scale(o[3](o[6]):sum()):backward()
  o[5]:unscale_(o[4])
  nn.utils.clip_grad_norm_(o[3]:parameters(), 1)
  o[5]:step(o[4])
  o[5]:update()
end)
scenario("a state taken and put back", function()
  local m = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
  return {m[1].weight, m[2].bias, m:state_dict(), m}
end, function(o)
  o[4]:load_state_dict(o[3])
  return tostring(o[4]:state_dict()), tostring(o[4])
end)
scenario("an optimizer's state", function()
  local p = nn.Parameter(dm.ones(2))
  local opt = optim.Adam({p}, {lr = 0.1})
  p.grad = dm.ones(2)
  opt:step()
  return {p, opt:state_dict(), opt}
end, function(o) o[3]:load_state_dict(o[2]) end)
scenario("a loader", function()
  local x, y = dm.arange(12):reshape(6, 2):float(), dm.arange(6)
  return {x, y, dm.data.TensorDataset(x, y)}
end, function(o)
  for _ in dm.data.DataLoader(o[3], {batch_size = 4, shuffle = true}) do end
end)
scenario("collating", function() return {{{dm.ones(2), 1}, {dm.ones(2), 2}}} end,
  function(o) dm.data.default_collate(o[1]) end)
scenario("json", function() return {{x = {1, 2, {y = "z"}}, list = {1, 2, 3}}} end,
  function(o) dm.json_decode(dm.json_encode(o[1])) end)
table.sort(scenarios, function(a, b) return a.name < b.name end)

-- ---- changes that a finalizer makes to the values that a call reads ----

local is_tensor = dm.is_tensor
local function each(v, fn, seen)
  if is_tensor(v) then return fn(v) end
  if type(v) ~= "table" or seen[v] then return end
  seen[v] = true
  for _, item in next, v do each(item, fn, seen) end
  fn(v)
end

local other = coroutine.wrap(function()
  while true do
    dm.set_grad_enabled(false)
    local _ <close> = dm.amp.autocast{dtype = "float16"}
    coroutine.yield(dm.ones(2, 2):mm(dm.ones(2, 2)))
  end
end)

local ACTS = {
  free = function(v)
    if is_tensor(v) then v:free() end
  end,
  exchange = function(v)
    if is_tensor(v) then v.data = dm.zeros({1}, {dtype = v.dtype}) end
  end,
  change = function(v)
    if is_tensor(v) then v:detach():zero_() end
  end,
  grow = function(v)
    if not is_tensor(v) then for i = 1, 100 do v[#v + 1] = i end end
  end,
  empty = function(v)
    if not is_tensor(v) then for key in next, v do v[key] = nil end end
  end,
  release = function()
    dm.scope():close()
    dm.set_grad_enabled(false)
  end,
}
local ACT_NAMES = {"free", "exchange", "change", "grow", "empty", "release"}

local n_finalizers = 0

-- Runs a scenario with the act after `at` bytes; tells whether the act came before its end. The
-- collector is set so that one step is a whole cycle, which starts when that much was allocated.
local function trial(s, act, at)
  local o, done, fired = s.make(), false, false
  collectgarbage "stop"
  setmetatable({}, {__gc = function()
    fired = not done
    if done then return end
    n_finalizers = n_finalizers + 1
    pcall(coroutine.yield)
    pcall(other)
    each(o, function(v) pcall(act, v) end, {})
    for i = 1, 20 do dm.zeros(i) end -- whoever takes the freed memory
    collectgarbage("incremental", 1000, 1000, 63)
  end})
  collectgarbage("incremental", 1000, 1000, 63)
  collectgarbage "restart" -- the collector's count of bytes begins here
  collectgarbage("step", -(at // 1024 + 1))
  local filler = ("x"):rep((at // 1024 + 1) * 1024 - at)
  pcall(s.run, o)
  done = true
  dm.set_grad_enabled(true)
  return fired, filler
end

local n_calls, turn = 0, 0
for _, s in ipairs(scenarios) do
  io.stdout:write(s.name, "\n")
  io.stdout:flush()
  local at, step, fired = 0, stride
  repeat
    turn = turn + 1
    fired = trial(s, ACTS[ACT_NAMES[turn % #ACT_NAMES + 1]], at)
    at, n_calls = at + step, n_calls + 1
    -- calls that allocate much are looked at more coarsely
    if (at // step) % 40 == 0 and stride > 24 then step = step * 2 end
  until not fired or at > 1 << 20
  if n_calls % 20 == 0 then
    collectgarbage "restart"
    collectgarbage()
  end
end
os.remove(FILE)
print(("%d calls, %d finalizers"):format(n_calls, n_finalizers))
os.exit(true)
