-- A long loop of careless steps stays flat:
--
--   lua5.4 spec/soak/loop.lua STEPS PROCESS
--
-- (PROCESS is the library made of spec/process.c.) Steps open no scopes, forget handles, raise
-- errors out of regions, leave coroutines and loops of loaders in their middle. A fifth of the
-- steps warm up; from then on nothing may grow: tensors and their bytes, blocks of the engine,
-- Lua's memory, resident memory, threads, open files. It prints the figures, then a line
-- `N passed, N failed`.

local steps, library = tonumber(arg[1]), arg[2]
local process = assert(package.loadlib(library, "luaopen_process"))()
local dm = require "demilune"
local hooks = require("demilune.core")._test
local nn, optim, amp, data = dm.nn, dm.optim, dm.amp, dm.data

local FILE = os.tmpname()
local MIB = 1 << 20

-- ---- careless steps ----

local model = nn.Sequential{nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)}
local optimizer = optim.AdamW(model:parameters(), {lr = 1e-3})
local scaler = amp.GradScaler{device = "cpu", init_scale = 256.0}
local loader = data.DataLoader(data.TensorDataset(dm.randn(24, 6), dm.randint(3, {24})),
  {batch_size = 4, shuffle = true, num_workers = 1})

local Square = dm.autograd.Function{name = "Square",
  forward = function(ctx, x)
    ctx:save_for_backward(x)
    return x * x
  end,
  backward = function(ctx, g)
    if g:numel() > 3 then error "on purpose" end
    return g * ctx:saved_tensors() * 2
  end,
}

local function loss_of(dtype)
  local x, y = dm.randn(4, 6), dm.randint(3, {4})
  local _ <close> = amp.autocast{device_type = "cpu", dtype = dtype}
  return nn.functional.cross_entropy(model(x), y)
end

local function train()
  optimizer:zero_grad()
  scaler:scale(loss_of "float16"):backward()
  scaler:step(optimizer)
  scaler:update()
end

-- An operation that fails, inside a region and a graph.
local function raise()
  local _ <close> = amp.autocast{device_type = "cpu", dtype = "bfloat16"}
  local y = model(dm.randn(4, 6))
  return y:matmul(dm.ones(2, 2))
end

-- The n-th request is refused, and all after it.
local function refuse_memory(n)
  hooks.alloc_fail_at(n, true)
  local ok, problem = pcall(loss_of, "bfloat16")
  hooks.alloc_fail_at(0, false)
  assert(ok or tostring(problem):find "memory", problem)
end

local STEPS = {
  train = train,
  ["forgets a graph"] = function() loss_of "bfloat16" end,
  ["keeps a graph for a second pass that never comes"] = function()
    loss_of("bfloat16"):backward{retain_graph = true}
  end,
  ["raises out of a region"] = function() assert(not pcall(raise)) end,
  ["raises in the middle of a backward pass"] = function()
    local y = Square(dm.randn(4, {requires_grad = true})):sum()
    assert(not pcall(y.backward, y))
  end,
  ["leaves a coroutine in its middle"] = function()
    local co = coroutine.create(function()
      local _ <close> = dm.no_grad()
      local x = dm.randn(16)
      coroutine.yield(x * 2)
      return x
    end)
    assert(coroutine.resume(co))
  end,
  ["trains in a coroutine"] = coroutine.wrap(function()
    while true do coroutine.yield(train()) end
  end),
  ["forgets hooks"] = function()
    local x = dm.randn(4, {requires_grad = true})
    local y = x * 2
    y:register_hook(function(g) return g + x:sum() end)
    y:sum():backward()
  end,
  ["forgets an optimizer and a model"] = function()
    local net = nn.Linear(3, 2)
    local sgd = optim.SGD(net:parameters(), {lr = 0.1, momentum = 0.9})
    net(dm.ones(1, 3)):sum():backward()
    sgd:step()
  end,
  ["runs short of memory"] = function(i) refuse_memory(i % 29 + 1) end,
  ["forgets views"] = function()
    local x = dm.randn(8, 8)
    for _, row in pairs(x) do row:add_(1) end
    return x:t()[2]:narrow(1, 2, 3)
  end,
}

-- These take more time: one in sixteen steps.
local SLOW_STEPS = {
  ["leaves a loop of a loader"] = function()
    for i, x in loader do
      if i == 2 then return x:sum() end
    end
  end,
  ["saves and loads"] = function()
    assert(dm.save(FILE, {model = model:state_dict(), optimizer = optimizer:state_dict()}))
    model:load_state_dict(assert(dm.load(FILE)).model)
  end,
  ["fails to load"] = function() assert(not dm.load(FILE .. "-of-nobody")) end,
  ["fails to save"] = function() assert(not dm.save("/dev/null/x", {dm.ones(2)})) end,
}

local function named(steps_of)
  local names = {}
  for name in pairs(steps_of) do names[#names + 1] = name end
  table.sort(names)
  return names
end

local names, slow_names = named(STEPS), named(SLOW_STEPS)

local function step(i)
  if i % 16 == 0 then
    SLOW_STEPS[slow_names[i // 16 % #slow_names + 1]](i)
  else
    STEPS[names[i % #names + 1]](i)
  end
end

-- ---- figures ----

local function resident()
  local file <close> = assert(io.open "/proc/self/statm")
  local _, pages = file:read("n", "n")
  return pages * 4096
end

-- How far each may lie above its value after the warm-up. The C library's own caches and the
-- pages that they fragment are resident memory which the engine does not count.
local SLACK = {resident = 8 * MIB, lua = MIB / 2, tensors = 0, bytes = 0, blocks = 0, threads = 0,
  files = 0}
local ORDER = {"tensors", "bytes", "blocks", "lua", "resident", "threads", "files"}

-- How many threads there are. One that was joined stands in the list for a moment longer.
local function threads()
  local n
  for _ = 1, 1000 do
    n = process.entries "/proc/self/task"
    if n == 1 then break end
    process.sleep(0.001)
  end
  return n
end

local function figures()
  loader:finish()
  optimizer:zero_grad()
  collectgarbage()
  collectgarbage()
  local stats = dm.memory_stats()
  return {tensors = stats["allocation.all.current"], bytes = stats["allocated_bytes.all.current"],
    blocks = hooks.alloc_live(), lua = math.floor(collectgarbage "count" * 1024),
    resident = resident(), threads = threads(),
    files = process.entries "/proc/self/fd"}
end

local function show(i, f)
  local words = {}
  for k, name in ipairs(ORDER) do words[k] = ("%s %d"):format(name, f[name]) end
  print(("step %d: %s"):format(i, table.concat(words, ", ")))
end

-- The figures that grew since the warm-up, as lines of text.
local function growth(i, first, now)
  local lines = {}
  for _, name in ipairs(ORDER) do
    if now[name] > first[name] + SLACK[name] then
      lines[#lines + 1] = ("failed: %s grew from %d to %d after %d steps"):format(name, first[name],
        now[name], i)
    end
  end
  return lines
end

local first, failed = nil, 0
for i = 1, steps do
  step(i)
  if i % (steps // 5) == 0 then
    local now = figures()
    show(i, now)
    first = first or now
    for _, line in ipairs(growth(i, first, now)) do
      failed = failed + 1
      print(line)
    end
  end
end
os.remove(FILE)
print(("%d passed, %d failed"):format(failed == 0 and 1 or 0, failed))
os.exit(failed == 0, true)
