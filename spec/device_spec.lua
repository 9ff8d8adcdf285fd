-- Plumbing of devices: moves, gradients across devices, the device of new tensors, CPU scalars
-- with device tensors, and synchronization. The device is that of spec/fake_cuda.c, which kills the
-- process when the host reads its memory. Each program runs in a process of its own.

local library = os.tmpname()

local PRELUDE = [[
local dm = require "demilune"
local nn, optim, amp, data = dm.nn, dm.optim, dm.amp, dm.data
local function same(expected, got, what)
  local function text(v)
    if type(v) ~= "table" then return tostring(v) end
    local parts = {}
    for i, item in ipairs(v) do parts[i] = text(item) end
    return "{" .. table.concat(parts, ", ") .. "}"
  end
  if text(expected) ~= text(got) then
    error(("%s: wanted %s, got %s"):format(what or "values", text(expected), text(got)), 2)
  end
end
local function refuses(pattern, f, ...)
  local ok, message = pcall(f, ...)
  if ok or not tostring(message):find(pattern) then
    error(("wanted an error with '%s', got: %s"):format(pattern, tostring(message)), 2)
  end
end
local function on(device, t, values)
  same(device, t.device, "device")
  if values then same(values, t:totable()) end
end
]]

-- Runs the program with the fake device and returns its error message.
local function far(program)
  return function()
    local script = os.tmpname()
    local file <close> = assert(io.open(script, "w"))
    file:write(("package.path, package.cpath = %q, %q\n"):format(package.path, package.cpath),
      PRELUDE, program, "\nprint 'ok'")
    file:flush()
    local pipe = io.popen(("DEMILUNE_CUDA=%s lua5.4 %s 2>&1"):format(library, script))
    local said = pipe:read "a"
    pipe:close()
    os.remove(script)
    assert.equal("ok\n", said)
  end
end

describe("another device", function()
  setup(function()
    local command = ("cc -shared -fPIC -std=c11 -D_GNU_SOURCE= -DDM_BACK_END -Isrc "
      .. "-I%s/generated spec/fake_cuda.c -o %s")
      :format(os.getenv "DEMILUNE_BUILD" or "build", library)
    assert(os.execute(command))
  end)
  teardown(function() os.remove(library) end)

  describe("moves", function()
    it("go there and back, by every spelling", far [[
      local x = dm.tensor{{1.5, 2}, {3, 4}}
      for _, y in ipairs{x:to "cuda", x:cuda(), x:to{device = "cuda"}, x:to("cuda:0", "float32"),
        x:to(dm.zeros(1, {device = "cuda"})), x:cuda{non_blocking = true},
        dm.tensor(x, {device = "cuda"}), dm.tensor({{1.5, 2}, {3, 4}}, {device = "cuda"})} do
        on("cuda:0", y, {{1.5, 2.0}, {3.0, 4.0}})
        on("cpu", y:cpu(), {{1.5, 2.0}, {3.0, 4.0}})
        on("cuda:1", y:to "cuda:1", {{1.5, 2.0}, {3.0, 4.0}})
      end
      assert(x:cuda().is_cuda and not x.is_cuda)
      assert(x:to "cpu" == x and x:to{copy = true} ~= x)
      refuses("unknown option 'devise'; did you mean 'device'", x.to, x, {devise = "cuda"})
      refuses("no device cuda:2", x.to, x, "cuda:2")
    ]])

    it("take any strides, and empty and 0-dim tensors", far [[
      local x = dm.arange(6):reshape(2, 3)
      on("cuda:0", x:t():to "cuda", {{1, 4}, {2, 5}, {3, 6}})
      local y = x:to "cuda"
      on("cpu", y:t():cpu(), {{1, 4}, {2, 5}, {3, 6}})
      same({{1, 4}, {2, 5}, {3, 6}}, y:t():totable())
      same({2, 5}, y[{{}, 2}]:totable())
      same({{2, 2}}, y[1][2]:expand(1, 2):totable())
      on("cuda:0", dm.zeros(0, 3):cuda(), {})
      on("cuda:0", dm.tensor(7):cuda(), 7)
    ]])

    it("convert on the side where fewer bytes travel", far [[
      local x = dm.tensor{1, 2, 3}:float()
      on("cuda:0", x:to("cuda", "float16"), {1.0, 2.0, 3.0})
      on("cpu", dm.tensor({1, 2}, {dtype = "uint8", device = "cuda"}):to("cpu", "float32"),
        {1.0, 2.0})
      local names = {}
      for _, how in ipairs{{x, "float16"}, {x:to "uint8", "float32"}} do
        local prof <close> = dm.profiler.profile()
        how[1]:to("cuda", how[2])
        prof:stop()
        for _, e in ipairs(prof:events()) do names[#names + 1] = e.name end
      end
      same({"to", "cast", "to_device", "to", "to_device", "cast"}, names)
    ]])

    it("carry gradients home", far [[
      local x = dm.tensor({{1.0, 2}, {3, 4}}, {requires_grad = true})
      local y = x:t():to("cuda", "float64") ^ 2
      on("cuda:0", y)
      y:sum():backward()
      on("cpu", x.grad, {{2.0, 4.0}, {6.0, 8.0}})
      same("float32", x.grad.dtype)
      local z = dm.tensor({2.0}, {device = "cuda", requires_grad = true})
      dm.autograd.grad(z:to "cuda:1" * 3, {z}, {create_graph = true})
      ;(z:to "cuda:1":cpu() * 3):backward()
      on("cuda:0", z.grad, {3.0})
      refuses("a gradient on cpu for a tensor on cuda:0", function() z.grad = dm.zeros(1) end)
      refuses("a gradient on cpu for a tensor on cuda:0", function()
        (z * 2):backward{gradient = dm.ones(1)}
      end)
    ]])

    it("copy_ crosses devices, with its gradient", far [[
      local c, g = dm.zeros(2, 2), dm.tensor({1.5, 2.5}, {device = "cuda"})
      on("cpu", c:copy_(g), {{1.5, 2.5}, {1.5, 2.5}})
      on("cuda:0", g:copy_(dm.tensor{7, 8}, {non_blocking = true}), {7.0, 8.0})
      on("cuda:0", g:copy_(dm.tensor(3)), {3.0, 3.0})
      on("cpu", dm.tensor(0.0):copy_(g[1]), 3.0)
      c[1] = g
      on("cpu", c, {{3.0, 3.0}, {1.5, 2.5}})
      local s = dm.tensor({1.0, 2.0}, {requires_grad = true})
      local y = dm.zeros(2, {device = "cuda"}):copy_(s)
      ;(y * 2):sum():backward()
      on("cpu", s.grad, {2.0, 2.0})
    ]])
  end)

  describe("host numbers", function()
    it("meet a device's tensors, whose device the result has", far [[
      local x, s = dm.tensor({1.0, -2}, {device = "cuda"}), dm.tensor(3.0)
      on("cuda:0", x * s, {3.0, -6.0})
      on("cuda:0", s - x, {2.0, 5.0})
      on("cuda:0", x:gt(0):where(x, s), {1.0, 3.0})
      on("cuda:0", dm.where(x:gt(0), 0, 1), {0, 1})
      on("cuda:0", s * dm.tensor(2.0, {device = "cuda"}), 6.0)
      on("cuda:0", dm.lerp(s, x, 0.5), {2.0, 0.5})
      on("cuda:0", dm.addcmul(s, x, x), {4.0, 7.0})
      on("cuda:0", x:clamp{min = dm.tensor(0.0)}, {1.0, 0.0})
      on("cuda:0", x:masked_fill(x:lt(0), s), {1.0, 3.0})
      on("cuda:0", s:masked_fill(x:lt(0), 0), {3.0, 0.0})
      on("cuda:0", x:scatter(1, dm.tensor({2}, {device = "cuda"}), 9), {1.0, 9.0})
      on("cuda:0", x + true, {2.0, -1.0})
    ]])

    it("get their gradient on the CPU", far [[
      local s = dm.tensor(3.0, {requires_grad = true})
      local x = dm.tensor({1.0, 2}, {device = "cuda", requires_grad = true})
      ;(x * s):sum():backward()
      on("cpu", s.grad, 3.0)
      on("cuda:0", x.grad, {3.0, 3.0})
    ]])

    it("are no tensors: those want x:to", far [[
      local x = dm.ones(2, {device = "cuda"})
      refuses("add: tensors on cuda:0 and cpu", function() return x + dm.ones(2) end)
      refuses("mul: tensors on cpu and cuda:0", function() return dm.ones(1) * x[1] end)
      refuses("stack: tensors on cpu and cuda:0", dm.stack, {x[1], dm.tensor(1.0)})
      refuses("cuda:0 and cuda:1", function() return x + x:to "cuda:1" end)
      refuses("add_: the result is on cuda:0, but it is written into cpu", function()
        dm.tensor(1.0):add_(x[1])
      end)
    ]])
  end)

  describe("the default device", function()
    it("is a scope, of creation, dm.tensor and modules", far [[
      same("cpu", dm.get_default_device())
      do
        local _ <close> = dm.device "cuda"
        same("cuda:0", dm.get_default_device())
        for _, t in ipairs{dm.zeros(2), dm.ones(2), dm.full({2}, 1), dm.arange(3), dm.eye(2),
          dm.linspace(0, 1, 3), dm.rand(2), dm.randn(2), dm.randint(5, {2}), dm.randperm(3),
          dm.empty(2), dm.tensor{1, 2}, dm.tensor(1)} do on("cuda:0", t) end
        on("cpu", dm.zeros(2, {device = "cpu"}))
        on("cpu", dm.tensor({1}, {device = "cpu"}))
        do
          local _ <close> = dm.device "cpu"
          on("cpu", dm.zeros(1))
        end
        local model = nn.Sequential{nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(),
          nn.LayerNorm(8), nn.Linear(8, 2)}
        for _, t in model:named_parameters() do on("cuda:0", t) end
        for _, t in model:named_buffers() do on("cuda:0", t) end
        on("cuda:0", model(dm.rand(3, 1, 4, 4)))
        on("cuda:0", nn.Embedding(4, 2)(dm.tensor{1, 4}))
        on("cuda:0", (nn.LSTM(2, 3)(dm.rand(4, 1, 2))))
        same("cuda:0", coroutine.wrap(function() return dm.zeros(1).device end)())
      end
      on("cpu", dm.zeros(1))
      on("cuda:0", dm.device("cuda", function(n) return dm.zeros(n) end, 2))
      pcall(dm.device, "cuda", error)
      on("cpu", dm.zeros(1))
      on("cuda:1", dm.device("cuda:1"):wrap(dm.zeros)(1))
      on("cpu", dm.zeros(1))
      refuses("no device cuda:7", dm.device, "cuda:7")
    ]])

    it("leaves to the CPU what is the CPU's: batches, samplers, transforms", far [[
      local _ <close> = dm.device "cuda"
      local set = data.TensorDataset(dm.arange(6, {device = "cuda"}):float():reshape(6, 1))
      for _, x in data.DataLoader(set, {batch_size = 4, shuffle = true}):iter() do
        on("cpu", x)
      end
      local own = data.Dataset:extend "Own"
      function own:len() return 3 end
      function own:get(i) return i end
      for _, x in data.DataLoader(own(), {batch_size = 3}):iter() do on("cpu", x, {1, 2, 3}) end
      on("cpu", data.SequentialSampler(set):order(1), {1, 2, 3, 4, 5, 6})
    ]])

    it("draws the same numbers everywhere", far [[
      local g, h = dm.Generator{device = "cuda"}, dm.Generator "cpu"
      same(dm.randn(5, {generator = h}):totable(),
        dm.randn(5, {generator = g, device = "cuda"}):totable())
      dm.manual_seed(3)
      local a = dm.rand(5):totable()
      dm.manual_seed(3)
      same(a, dm.rand(5, {device = "cuda"}):totable())
      refuses("unknown option", dm.Generator, {devise = "cuda"})
    ]])
  end)

  describe("the host", function()
    it("reads items, tables, equality and text", far [[
      local x = dm.tensor({{1.5, 2}, {0 / 0, 4}}, {device = "cuda", requires_grad = true})
      same(2.0, x[1][2]:item())
      assert(x[1]:equal(x[1]:clone()) and not x[1]:equal(x[1] * 2))
      local text = tostring(x:t())
      assert(text:find "1%.5000" and text:find "cuda:0, requires grad, from t, 1 nan%]", text)
      assert(tostring(x[1][1]):find "^1%.5000  %[float32 tensor {} cuda:0", tostring(x[1][1]))
      local large = dm.ones(1100, 1000, {device = "cuda"})
      large[-1][-1] = 2
      local corner = tostring(large)
      assert(corner:find "1%.  1%.  1%.  2%." and corner:find "{1100, 1000} cuda:0", corner)
    ]])

    it("gets sizes that depend on data", far [[
      local x = dm.tensor({{3, 0}, {1, 2}}, {device = "cuda"})
      on("cuda:0", x:nonzero(), {{1, 1}, {2, 1}, {2, 2}})
      on("cuda:0", x:masked_select(x:gt(1)), {3, 2})
      on("cuda:0", x[x:gt(1)], {3, 2})
      x[x:eq(0)] = dm.tensor({5}, {device = "cuda"})
      on("cuda:0", dm.nn.functional.one_hot(x[2]), {{1, 0}, {0, 1}})
      same({{3, 5}, {1, 2}}, x:totable())
      refuses("one_hot: num_classes", dm.one_hot, dm.zeros(0, {dtype = "int64", device = "cuda"}))
    ]])

    it("indexes with its own positions and masks", far [[
      local x = dm.tensor({1.0, 2, 3}, {device = "cuda"})
      on("cuda:0", x[dm.tensor{3, 1}], {3.0, 1.0})
      on("cuda:0", x[{dm.tensor{3, 1}}], {3.0, 1.0})
      on("cuda:0", x[dm.tensor{true, false, true}], {1.0, 3.0})
      x[dm.tensor{2}] = 7
      x[dm.tensor{true, false, false}] = 8
      same({8.0, 7.0, 3.0}, x:totable())
    ]])

    it("finds NaN in gradients", far [[
      require "demilune.caller".sink = function() end -- it says that it is slow
      local x = dm.tensor({0.0}, {device = "cuda", requires_grad = true})
      local _ <close> = dm.autograd.detect_anomaly()
      refuses("backward of .* is NaN", function() (x:sqrt() * 0):backward() end)
    ]])

    it("takes gradients of windows and batch statistics", far [[
      local function run(device)
        dm.manual_seed(1)
        local x = dm.randn(4, 4, {device = device, requires_grad = true})
        local y = x:as_strided({3, 2}, {1, 1}) * 2 + x[{{1, 3}, {2, 3}}] + x:diagonal()[1]
        local v = x:clone()
        v[2]:mul_(3)
        local bn = nn.BatchNorm1d(4, {device = device})
        ;(bn(v):pow(3):sum() + y:sum()):backward()
        return {x.grad:cpu():totable(), bn.running_mean:mul(1e4):round():totable(),
          bn.running_var:mul(1e4):round():totable(), bn.num_batches_tracked:item()}
      end
      same(run "cpu", run "cuda")
    ]])

    it("asks for memory by device, and waits for it", far [[
      local before = dm.memory_allocated "cuda"
      local t = dm.empty(1 << 20, {device = "cuda"})
      same(4 << 20, dm.memory_allocated "cuda" - before)
      same(dm.memory_allocated "cuda", dm.memory_stats "cuda"["allocated_bytes.all.current"])
      assert(dm.max_memory_allocated "cuda:0" >= 4 << 20)
      for _, name in ipairs{"empty_cache", "synchronize", "reset_peak_memory_stats"} do
        dm[name] "cuda"
        refuses("no device cuda:5", dm[name], "cuda:5")
      end
      dm.synchronize()
      assert(dm.memory_summary "cuda":find "device cuda")
      same({1 << 29, 1 << 30}, {dm.mem_get_info "cuda"})
      t:free()
      same(before, dm.memory_allocated "cuda")
      refuses("out of memory", dm.empty, 1 << 40, {device = "cuda"})
    ]])

    it("collects what the device's garbage holds", far [[
      collectgarbage "stop"
      for _ = 1, 400 do dm.empty(1 << 18, {device = "cuda"}) end
      assert(dm.memory_allocated "cuda" < 200 << 20, dm.memory_allocated "cuda")
    ]])

    it("saves and loads", far [[
      local path = os.tmpname()
      local x = dm.arange(6, {device = "cuda"}):reshape(2, 3):t()
      assert(dm.save(path, {x = x, n = 1}))
      on("cpu", dm.load(path).x, {{1, 4}, {2, 5}, {3, 6}})
      on("cuda:0", dm.load(path, {map_location = "cuda"}).x, {{1, 4}, {2, 5}, {3, 6}})
      on("cuda:1", dm.load(path, {device = "cuda:1"}).x)
      os.remove(path)
    ]])
  end)

  describe("training", function()
    local STEPS = [[
      local function train(device, steps)
        dm.manual_seed(1)
        local model = nn.Sequential{nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)}:to(device)
        local first = model:parameters()[1]
        local optimizer = optim.SGD(model:parameters(), {lr = 0.1})
        assert(model:parameters()[1] == first)
        local scaler = amp.GradScaler{init_scale = 8, growth_interval = 100}
        local x, y = dm.rand(6, 4):to(device), dm.tensor({1, 2, 1, 2, 1, 2}, {device = device})
        for i = 1, steps do
          optimizer:zero_grad()
          local loss = nn.CrossEntropyLoss()(model(x), y)
          if i == 2 then loss = loss * math.huge end
          scaler:scale(loss):backward()
          scaler:step(optimizer)
          scaler:update()
        end
        return model, optimizer, scaler
      end
    ]]

    it("is the CPU's, and skips on the device", far(STEPS .. [[
      local c, _, cs = train("cpu", 4)
      local g, go, gs = train("cuda", 4)
      for i, p in ipairs(g:parameters()) do
        on("cuda:0", p)
        on("cuda:0", p.grad)
        assert((p:cpu() - c:parameters()[i]):abs():amax():item() < 1e-6)
      end
      same({cs:get_scale(), cs:stats().skipped, 4.0}, {gs:get_scale(), gs:stats().skipped, 4.0})
      on("cuda:0", gs._scale)
      gs:update(dm.tensor(2.0, {device = "cuda"}))
      same(2.0, gs:get_scale())
      refuses("wanted one float element on cuda:0", gs.update, gs, dm.tensor(2.0))
    ]]))

    it("moves a module with its gradients and buffers, and keeps its tensors", far(STEPS .. [[
      local model = train("cpu", 1)
      model:append(nn.BatchNorm1d(2))
      local p = model:parameters()[1]
      local old = p.grad:totable()
      model:cuda()
      assert(p == model:parameters()[1])
      on("cuda:0", p)
      on("cuda:0", p.grad, old)
      for _, t in model:named_buffers() do on("cuda:0", t) end
      model:to("cpu", "float64")
      on("cpu", p)
      same("float64", p.dtype)
      refuses("unknown option 'devise'", model.to, model, {devise = "cpu"})
    ]]))

    it("loads state to where it belongs", far [[
      local function adam(device)
        local p = nn.Parameter and nn.Parameter(dm.ones(2)) or dm.ones(2, {requires_grad = true})
        p.data = p.data:to(device)
        return optim.Adam({p}), p
      end
      local a, p = adam "cpu"
      p.grad = dm.ones(2)
      a:step()
      local b, q = adam "cuda"
      b:load_state_dict(a:state_dict())
      for name, t in pairs(b.state[q]) do
        on("cuda:0", t)
        same(a.state[p][name]:totable(), t:totable())
      end
      local model = nn.Linear(2, 1):cuda()
      model:load_state_dict(nn.Linear(2, 1):state_dict())
      on("cuda:0", model.weight)
    ]])

    it("steps each device's tensors of a group there", far [[
      local p = dm.ones(2, {requires_grad = true})
      local q = dm.ones(2, {requires_grad = true, device = "cuda"})
      p.grad, q.grad = dm.ones(2), dm.full({2}, 2.0, {device = "cuda"})
      optim.SGD({p, q}, {lr = 0.25}):step()
      on("cpu", p, {0.75, 0.75})
      on("cuda:0", q, {0.5, 0.5})
    ]])
  end)

  it("goes by its own column under autocast, with weights' casts shared", far [[
    local layer, x = nn.Linear(4, 4):cuda(), dm.rand(2, 4, {device = "cuda"})
    do
      local _ <close> = amp.autocast{device_type = "cpu", dtype = "bfloat16"}
      same("float32", layer(x).dtype)
    end
    if dm.cuda.is_available() then
      local _ <close> = amp.autocast{device_type = "cuda", dtype = "float16"}
      local y = layer(x)
      same({"float16", "float32"}, {y.dtype, y:exp().dtype})
      on("cuda:0", y)
    end
  ]])
end)
