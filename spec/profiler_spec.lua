-- demilune.profiler records ops and ranges, nests them, adds up their times and memory, and
-- prints PyTorch's table of averages.

local dm = require "demilune"
local hooks = require("demilune.core")._test
local DEVICE = require("spec.device").type
local caller = require "demilune.caller"
local averages = require "demilune.profiler.averages"
local nn, optim, amp, profiler = dm.nn, dm.optim, dm.amp, dm.profiler

local function by_name(list)
  local out = {}
  for _, e in ipairs(list) do out[e.key] = e end
  return out
end

local function names(list)
  local out = {}
  for i, e in ipairs(list) do out[i] = e.key end
  return out
end

-- The words of a line of the table, columns apart by two spaces or more.
local function cells(line)
  local out = {}
  for cell in (line .. "  "):gmatch "%s*(.-)%s%s+" do out[#out + 1] = cell end
  return out
end

local function lines_of(text)
  local out = {}
  for line in text:gmatch "([^\n]*)\n" do out[#out + 1] = line end
  return out
end

-- A list of averages with the given times, as a profile returns it.
local function list_of(rows, memory)
  local list = setmetatable({memory = memory}, averages.List)
  for i, row in ipairs(rows) do
    local e = averages.entry(row.key)
    averages.add(e, {cpu_time_total = row.total or 0, self_cpu_time_total = row.self or 0,
      cpu_memory_usage = row.bytes or 0, self_cpu_memory_usage = row.bytes or 0,
      device_time_total = row.device or 0, self_device_time_total = row.device or 0,
      device_memory_usage = row.device_bytes or 0,
      self_device_memory_usage = row.device_bytes or 0,
      flops = row.flops or 0, top_level = row.top_level ~= false})
    e.count, e.input_shapes, e.stack = row.count or 1, row.shapes, row.stack
    e.cpu_time = e.cpu_time_total / e.count
    list[i] = e
  end
  return list
end

local function small_run(opts)
  local x, w = dm.randn(8, 16), dm.randn(16, 4, {requires_grad = true})
  local prof = profiler.profile(opts)
  for _ = 1, 3 do x:mm(w):relu():sum():backward() end
  prof:stop()
  return prof
end

describe("the table of averages", function()
  it("has its columns in order, falls by its key, and honours the row limit", function()
    local prof = small_run{activities = {"cpu"}, profile_memory = true, record_shapes = true}
    local text = prof:key_averages():table{sort_by = "self_cpu_time_total", row_limit = 3}
    local lines = lines_of(text)
    local columns = {"Name", "Self CPU %", "Self CPU", "CPU total %", "CPU total",
      "CPU time avg", "CPU Mem", "Self CPU Mem", "CUDA Mem", "Self CUDA Mem", "# of Calls"}
    if DEVICE == "cpu" then table.move(columns, 11, 13, 9) end -- there are no columns of CUDA
    assert.same(columns, cells(lines[2]))
    assert.equal(lines[1], lines[3])
    assert.equal(lines[1], lines[7])
    assert.matches("^Self CPU time total: [%d.]+[um]?s$", lines[8])
    assert.equal(8, #lines)
    local last = math.huge
    for i = 4, 6 do
      local share = tonumber(cells(lines[i])[2]:match "^([%d.]+)%%$")
      assert.is_true(share <= last)
      last = share
    end
    local all = prof:key_averages()
    assert.equal(#all + 5, #lines_of(all:table{row_limit = -1}))
  end)

  it("has columns for other devices' memory where there was some, and sorts by it", function()
    local list = list_of({{key = "a", device_bytes = 512}, {key = "b", device_bytes = 3 << 20},
      {key = "c"}}, true)
    local lines = lines_of(list:table{sort_by = "cuda_memory_usage"})
    local found = {}
    for i, title in ipairs(cells(lines[2])) do found[title] = i end
    for i, want in ipairs{{"b", "3.00 MB"}, {"a", "512 B"}, {"c", "0 B"}} do
      local row = cells(lines[3 + i])
      assert.same({want[1], want[2], want[2], "0 B"}, {row[1], row[found["CUDA Mem"]],
        row[found["Self CUDA Mem"]], row[found["CPU Mem"]]})
    end
  end)

  it("refuses an unknown sort key by its name", function()
    local list = small_run():key_averages()
    assert.refuses("unknown sort key 'cpu_time_totle'; did you mean 'cpu_time_total'?",
      function() list:table{sort_by = "cpu_time_totle"} end)
    assert.refuses("profiler_spec", function() list:table{sort_by = "key"} end)
    assert.refuses("unknown option 'sort'", function() list:table{sort = "count"} end)
  end)

  it("is laid out as PyTorch's, with its numbers", function()
    local list = list_of{
      {key = "linear", total = 2e6, self = 1.5e6, count = 2},
      {key = "mm", total = 5e5, self = 499987.655},
      {key = "relu", total = 12.345, self = 12.345, count = 10},
    }
    assert.equal(("="):rep(94) .. "\n" .. [[
a header
----------  ------------  ------------  ------------  ------------  ------------  ------------
      Name    Self CPU %      Self CPU   CPU total %     CPU total  CPU time avg    # of Calls
----------  ------------  ------------  ------------  ------------  ------------  ------------
    linear        75.00%        1.500s       100.00%        2.000s        1.000s             2
        mm        25.00%     499.988ms        25.00%     500.000ms     500.000ms             1
      relu         0.00%      12.345us         0.00%      12.345us       1.235us            10
----------  ------------  ------------  ------------  ------------  ------------  ------------
Self CPU time total: 2.000s
]], list:table{header = "a header"})
  end)

  it("prints bytes in powers of 1024", function()
    local rows = {}
    for i, n in ipairs{0, 1023, -8192, 3 << 19, 3 << 30} do
      rows[i] = {key = "e", self = 1, bytes = n}
    end
    local seen = {}
    for i, line in ipairs(lines_of(list_of(rows, true):table())) do
      if i > 3 and i < 9 then seen[#seen + 1] = cells(line)[7] end
    end
    assert.same({"0 B", "1023 B", "-8.00 KB", "1.50 MB", "3.00 GB"}, seen)
  end)

  it("says NaN where no time was spent, and nothing where nothing happened", function()
    assert.matches("none +NaN +0.000us +NaN", list_of{{key = "none"}}:table())
    assert.equal("", list_of{}:table())
    assert.equal("", profiler.profile({}, function(p) return p:key_averages():table() end))
  end)

  it("cuts names of 52 characters, and as told", function()
    local list = list_of{{key = ("n"):rep(51), self = 1}, {key = ("m"):rep(52), self = 1}}
    local lines = lines_of(list:table())
    assert.equal(("n"):rep(51), cells(lines[4])[1])
    assert.equal(("m"):rep(52) .. "...", cells(lines[5])[1])
    assert.equal(55, #lines[1]:match "^%-+")
    lines = lines_of(list:table{max_name_column_width = 20})
    assert.equal(("n"):rep(17) .. "...", cells(lines[4])[1])
  end)

  it("sorts by any of its keys, cuda's are 0 and leave the order", function()
    local rows = {}
    for i = 1, 5 do
      local v = ({3, 1, 5, 2, 4})[i]
      rows[i] = {key = "e" .. v, total = v, self = v, bytes = v, flops = v, count = 1}
    end
    local list = list_of(rows)
    local function order(key)
      local out = {}
      for i, line in ipairs(lines_of(list:table{sort_by = key})) do
        if i > 3 and i <= 8 then out[#out + 1] = cells(line)[1] end
      end
      return table.concat(out, " ")
    end
    for _, key in ipairs{"cpu_time", "cpu_time_total", "self_cpu_time_total",
      "cpu_memory_usage", "self_cpu_memory_usage", "flops"} do
      assert.equal("e5 e4 e3 e2 e1", order(key))
    end
    for _, key in ipairs{"cuda_time", "cuda_time_total", "self_cuda_time_total", "count",
      "cuda_memory_usage", "self_cuda_memory_usage", "xpu_time_total", "device_time"} do
      assert.equal("e3 e1 e5 e2 e4", order(key))
    end
  end)

  it("scales FLOPs by the smallest, and shows shapes and sources", function()
    local lines = lines_of(list_of{
      {key = "mm", self = 1, flops = 2.5e6, shapes = "{{2, 3}}", stack = {"a.lua:1", "b.lua:2"}},
      {key = "conv2d", self = 1, flops = 4e9, shapes = "{{1}}", stack = {}},
      {key = "relu", self = 1},
    }:table())
    assert.same({"Input Shapes", "Source Location", "Total MFLOPs"},
      {table.unpack(cells(lines[2]), 8)})
    assert.same({"{{2, 3}}", "a.lua:1", "2.500"}, {table.unpack(cells(lines[4]), 8)})
    assert.matches("^ +b.lua:2$", lines[5])
    assert.equal("", lines[6])
    assert.matches("{{1}} +4000.000$", lines[7])
    assert.matches("%-%-$", lines[8])
  end)

  it("leaves out what lies within another when told to", function()
    local prof = profiler.profile()
    profiler.record_function("outer", function() return dm.ones(2) + 1 end)
    prof:stop()
    local text = prof:key_averages():table{top_level_events_only = true}
    assert.matches("outer", text)
    assert.not_matches("add", text)
  end)
end)

describe("a profile", function()
  it("names ops, backward nodes, ops in place and optimizer steps", function()
    local model = nn.Linear(4, 2)
    local optimizers = {optim.Adam(model:parameters()), optim.AdamW(model:parameters()),
      optim.SGD(model:parameters(), {lr = 0.1})}
    local prof = profiler.profile()
    model(dm.randn(3, 4)):sum():backward()
    for _, o in ipairs(optimizers) do o:step() end
    dm.ones(2):add_(1)
    prof:stop()
    local rows = by_name(prof:key_averages())
    for _, name in ipairs{"linear", "linear backward", "sum backward", "Adam.step",
      "AdamW.step", "SGD.step", "add_"} do
      assert.equal(1, rows[name] and rows[name].count, name)
    end
  end)

  it("tells a cast by autocast from one by the program", function()
    local x, w = dm.randn(4, 4), dm.randn(4, 4, {requires_grad = true})
    local prof = profiler.profile()
    do
      local _ <close> = amp.autocast{dtype = "bfloat16"}
      x:mm(w)
      x:mm(w) -- w's cast is cached
    end
    x:to("float16")
    prof:stop()
    local rows = by_name(prof:key_averages())
    assert.equal(3, rows["cast (autocast)"].count)
    assert.equal(1, rows.cast.count)
  end)

  it("puts the ops of a gradient within its node", function()
    local prof = small_run()
    local inner = {}
    for _, e in ipairs(prof:events()) do
      local parent = e.cpu_parent
      if parent then
        assert.is_true(e.start >= parent.start and e.stop <= parent.stop)
        inner[parent.name .. " " .. e.name] = true
      end
    end
    assert.is_true(inner["mm backward matmul"])
    assert.is_true(inner["relu backward unary_backward"])
  end)

  it("adds up: self times of all are the time of the outermost", function()
    local prof = small_run()
    local own, outer = 0, 0
    for _, e in ipairs(prof:events()) do
      assert.is_true(e.self_cpu_time_total <= e.cpu_time_total)
      own = own + e.self_cpu_time_total
      if e.top_level then outer = outer + e.cpu_time_total end
    end
    assert.is_true(math.abs(own - outer) < 1e-6 * outer)
  end)

  it("measures time", function()
    local prof = profiler.profile()
    profiler.record_function("wait", function()
      local t = dm.now()
      while dm.now() - t < 0.02 do end -- luacheck: ignore
    end)
    prof:stop()
    local e = prof:events()[1]
    assert.is_true(e.cpu_time_total >= 2e4 and e.cpu_time_total < 2e6)
  end)

  it("records shapes when asked, and groups by them", function()
    local function work()
      local a = dm.ones(2, 3)
      a:mm(dm.ones(3, 4))
      a:mm(dm.ones(3, 5))
    end
    local prof = profiler.profile{record_shapes = true}
    work()
    prof:stop()
    local shapes = {}
    for _, e in ipairs(prof:key_averages{group_by_input_shape = true}) do
      if e.key == "mm" then shapes[#shapes + 1] = e.input_shapes end
    end
    assert.same({"{{2, 3}, {3, 4}}", "{{2, 3}, {3, 5}}"}, shapes)
    assert.equal(2, by_name(prof:key_averages()).mm.count)
    assert.is_nil(profiler.profile({}, function(p) work() return p:events()[1].input_shapes end))
  end)

  it("records memory when asked: all, and without what lies within", function()
    local prof, kept = profiler.profile{profile_memory = true}, nil
    profiler.record_function("range", function()
      kept = dm.zeros(1 << 16, {dtype = "uint8"})
      local t = dm.empty(1 << 20)
      t:free()
    end)
    prof:stop()
    assert.is_true(kept ~= nil)
    local rows = by_name(prof:key_averages())
    local here, there = "cpu_memory_usage", "device_memory_usage"
    if DEVICE ~= "cpu" then here, there = there, here end
    assert.equal(1 << 16, rows.zeros[here])
    assert.equal(1 << 16, rows.range[here])
    assert.is_true(rows.range[there] < 1 << 16) -- handles at the most
    local inner = 0
    for _, e in ipairs(prof:events()) do
      if e.cpu_parent then inner = inner + e["self_" .. here] end
    end
    assert.equal((1 << 16) - inner, rows.range["self_" .. here])
    assert.equal(0, by_name(small_run():key_averages()).mm[here])
  end)

  it("counts FLOPs of products and convolutions, and of their gradients", function()
    local function flops(fn)
      local prof = profiler.profile{with_flops = true}
      fn()
      prof:stop()
      local sum, rows = 0, by_name(prof:key_averages())
      for _, e in pairs(rows) do sum = sum + e.flops end
      return sum, rows
    end
    local a, b = dm.randn(2, 3), dm.randn(3, 4, {requires_grad = true})
    assert.equal(2 * 2 * 3 * 4, flops(function() a:mm(b) end))
    assert.equal(2 * 2 * 3 * 4, flops(function() dm.addmm(dm.ones(4), a, b) end))
    assert.equal(5 * 2 * 2 * 3 * 4, flops(function() dm.ones(5, 2, 3):bmm(dm.ones(5, 3, 4)) end))
    assert.equal(2 * 2 * 3 * 4, flops(function()
      nn.functional.linear(a, dm.ones(4, 3), dm.ones(4))
    end))
    assert.equal(2 * 2 * 2 * 3 * 4, flops(function() a:mm(b):sum():backward() end))
    local weight, bias = dm.randn(4, 3, {requires_grad = true}), dm.ones(4, {requires_grad = true})
    for _, name in ipairs{"none", "relu"} do
      assert.equal(2 * 2 * 2 * 3 * 4, flops(function()
        nn.functional.linear(a, weight, bias, {activation = name}):sum():backward()
      end))
    end
    local x = dm.randn(2, 4, 5, 5, {requires_grad = true})
    local w = dm.randn(6, 2, 3, 3, {requires_grad = true})
    local once = 2 * (2 * 6 * 3 * 3) * (2 * 3 * 3)
    local sum, rows = flops(function()
      nn.functional.conv2d(x, w, {groups = 2}):sum():backward()
    end)
    assert.equal(3 * once, sum)
    assert.equal(once, rows.conv2d.flops)
    assert.equal(once, rows.conv2d_dx.flops)
    assert.equal(once, rows.conv2d_dw.flops)
    assert.equal(0, small_run():key_averages()[1].flops)
  end)

  it("notes lines of the program when asked, and groups by them", function()
    local x = dm.ones(2)
    local function here() return debug.getinfo(2, "l").currentline end
    local prof, first = profiler.profile{with_stack = true}, here()
    x:exp(); x:exp()
    x:exp()
    prof:stop()
    local rows = prof:key_averages{group_by_stack_n = 1}
    assert.equal(2, #rows)
    assert.equal(2, rows[1].count)
    assert.matches("profiler_spec.lua:" .. first + 1 .. "$", rows[1].stack[1])
    assert.matches("profiler_spec.lua:" .. first + 2 .. "$", rows[2].stack[1])
    assert.equal(1, #rows[1].stack)
    assert.equal(1, #prof:key_averages())
    assert.is_true(#prof:events()[1].stack > 1)
  end)

  it("is a scope, takes a function, and wraps one", function()
    local x = dm.ones(2)
    local kept
    do
      local prof <close> = profiler.profile()
      x:exp()
      assert.same({"exp"}, names(prof:key_averages())) -- while it records
      kept = prof
    end
    x:exp()
    assert.equal(1, #kept:events())

    local a, b = profiler.profile({}, function(prof)
      kept = prof
      x:exp()
      return "a", "b"
    end)
    assert.same({"a", "b"}, {a, b})
    x:exp()
    assert.equal(1, #kept:events())

    local prof = profiler.profile()
    local fn = prof:wrap(function(v) return (v:exp()) end)
    x:exp()
    assert.is_true(dm.is_tensor(fn(x)))
    x:exp()
    fn(x)
    assert.equal(2, #prof:events())
    assert.matches("2 events, stopped", tostring(prof))
    prof:start()
    x:exp()
    prof:stop()
    assert.equal(3, #prof:events())
  end)

  it("leaves no observer behind after an error, whose text stays", function()
    local kept
    assert.refuses("mine", function()
      local prof <close> = profiler.profile()
      kept = prof
      local _ <close> = profiler.record_function "range"
      error "mine"
    end)
    assert.refuses("mine", function()
      profiler.profile({}, function() error "mine" end)
    end)
    dm.ones(2):exp()
    assert.same({"range"}, names(kept:events()))
  end)

  it("records an op that fails", function()
    local prof = profiler.profile()
    pcall(function() return dm.ones(2, 3):mm(dm.ones(2, 3)) end)
    prof:stop()
    assert.equal(1, by_name(prof:key_averages()).mm.count)
  end)

  it("may lie within another: both see what happens in both", function()
    local x = dm.ones(2)
    local inner
    local outer = profiler.profile()
    x:exp()
    do
      local prof <close> = profiler.profile()
      inner = prof
      x:log()
    end
    x:sin()
    outer:stop()
    assert.same({"exp", "log", "sin"}, names(outer:events()))
    assert.same({"log"}, names(inner:events()))
  end)

  it("may begin and end while an op is under way", function()
    local inside
    local Double = dm.autograd.Function{
      forward = function(_, x) return x * 2 end,
      backward = function(_, gy)
        inside = inside or profiler.profile()
        return gy * 2
      end,
    }
    local x = dm.ones(2, {requires_grad = true})
    local y = Double(x)
    y:sum():backward() -- begins within the node, whose end it ignores
    inside:stop()
    assert.equal("mul", inside:events()[1].name)
    assert.is_nil(by_name(inside:events())["Function backward"])

    local outer = profiler.profile()
    local Stop = dm.autograd.Function{
      forward = function(_, v) return v * 2 end,
      backward = function(_, gy) outer:stop() return gy * 2 end,
    }
    Stop(x):sum():backward()
    local last = outer:events()[#outer:events()]
    assert.equal("Function backward", last.name)
    assert.is_true(last.stop >= last.start)
  end)

  it("sees all coroutines; ranges that overlap still add up", function()
    local x = dm.ones(2)
    local prof = profiler.profile()
    local other = coroutine.wrap(function()
      local _ <close> = profiler.record_function "inner"
      x:exp()
      coroutine.yield()
      x:log()
    end)
    do
      local _ <close> = profiler.record_function "outer"
      other()
    end
    x:sin()
    other() -- "inner" ends after "outer", within which it began
    prof:stop()
    local events = prof:events()
    assert.same({"outer", "inner", "exp", "sin", "log"}, names(events))
    assert.equal(events[1], events[2].cpu_parent)
    assert.equal(events[2], events[3].cpu_parent)
    assert.equal(events[2], events[5].cpu_parent)
    assert.equal(events[1].thread, events[4].thread)
    assert.not_equal(events[1].thread, events[2].thread)
    local own = 0
    for _, e in ipairs(events) do own = own + e.self_cpu_time_total end
    assert.is_true(math.abs(own - (events[2].stop - events[1].start)) < 1e-3)
  end)

  it("that is forgotten stops when it is collected", function()
    collectgarbage()
    collectgarbage()
    local live = hooks.alloc_live()
    do
      local prof = profiler.profile()
      dm.ones(2):exp()
      assert.is_true(hooks.alloc_live() > live)
      assert.is_true(prof ~= nil)
    end
    collectgarbage()
    collectgarbage()
    live = hooks.alloc_live()
    for _ = 1, 2000 do dm.range_end(dm.range_begin "x") end
    assert.equal(live, hooks.alloc_live())
  end)

  it("ends with an error where memory runs out, and keeps what it has", function()
    local prof = profiler.profile()
    dm.ones(2):exp()
    finally(function() hooks.alloc_fail_at(0) end)
    hooks.alloc_fail_at(1, true)
    for _ = 1, 2000 do dm.range_end(dm.range_begin "x") end
    hooks.alloc_fail_at(0)
    dm.ones(2):log()
    assert.refuses("profile: out of memory after %d+ events", function() prof:stop() end)
    local seen = names(prof:events())
    assert.same({"ones", "exp"}, {seen[1], seen[2]})
    assert.not_equal("log", seen[#seen])
    prof:stop() -- once
    prof:start()
    dm.ones(2):log()
    prof:stop()
    seen = names(prof:events())
    assert.equal("log", seen[#seen])
  end)

  it("drops a CUDA activity, and warns where there is no CUDA", function()
    local warnings, sink = {}, caller.sink
    finally(function() caller.sink = sink end)
    caller.sink = function(text) warnings[#warnings + 1] = text end
    local function count(activities)
      return profiler.profile({activities = activities}, function(p)
        dm.ones(2):exp()
        return #p:events()
      end)
    end
    assert.equal(2, count{"cpu"})
    assert.equal(0, #warnings)
    assert.equal(2, count{profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA})
    if dm.cuda.is_available() then
      assert.equal(0, #warnings)
    else
      assert.equal(1, #warnings)
      assert.matches("profiler_spec.lua:%d+: warning: profile: .*CUDA", warnings[1])
    end
    assert.equal(dm.cuda.is_available() and 2 or 0, count{"cuda"})
  end)

  it("refuses what it does not know", function()
    assert.refuses("unknown activity 'gpu'", function() profiler.profile{activities = {"gpu"}} end)
    assert.refuses("activities is empty", function() profiler.profile{activities = {}} end)
    assert.refuses("unknown option 'memory'", function() profiler.profile{memory = true} end)
    assert.refuses("is one too many", function() profiler.profile({}, 1) end)
    assert.refuses("wanted a string", function() profiler.record_function(nil) end)
    assert.refuses("wanted a function", function() profiler.record_function("x", 1) end)
  end)

  it("sees the batches of a loader and the steps of a scaler", function()
    local set = dm.data.TensorDataset(dm.ones(4, 2))
    local w = dm.ones(2, {requires_grad = true})
    local opt, scaler = optim.SGD({w}, {lr = 0.1}), amp.GradScaler{device = DEVICE}
    local prof = profiler.profile()
    for _, x in dm.data.DataLoader(set, {batch_size = 2}):iter() do
      opt:zero_grad()
      scaler:scale((x:to(DEVICE) * w):sum()):backward()
      scaler:step(opt)
      scaler:update()
    end
    prof:stop()
    local rows = by_name(prof:key_averages())
    assert.equal(3, rows["DataLoader.next"].count) -- the last one finds the end
    assert.equal(2, rows["GradScaler.unscale_"].count)
    assert.equal(2, rows["GradScaler.update"].count)
  end)
end)

describe("record_function", function()
  it("is a range in all three forms, and nothing where no profile is", function()
    local x = dm.ones(2)
    local function work(v) return (v:exp()) end
    local prof = profiler.profile()
    do
      local _ <close> = profiler.record_function "block"
      work(x)
    end
    assert.is_true(dm.is_tensor(profiler.record_function("call", work, x)))
    local wrapped = profiler.record_function "wrap":wrap(work)
    wrapped(x)
    wrapped(x)
    prof:stop()
    profiler.record_function("off", work, x)
    local seen = {}
    for _, e in ipairs(prof:events()) do
      if e.name == "exp" then
        seen[#seen + 1] = e.cpu_parent.name
        assert.is_true(e.is_op)
        assert.is_false(e.cpu_parent.is_op)
      end
    end
    assert.same({"block", "call", "wrap", "wrap"}, seen)
  end)
end)

describe("amp.report", function()
  it("looks through ranges, and works during a profile", function()
    local x, prof = dm.ones(2), profiler.profile()
    local report = amp.report()
    profiler.record_function("range", function() return x:exp(), x:log() end)
    report:close()
    prof:stop()
    assert.same({float32 = 2}, report.total.forward)
    assert.same({"range", "exp", "log"}, names(prof:events()))
  end)
end)

describe("export_chrome_trace", function()
  it("writes JSON that a viewer opens", function()
    local path = os.tmpname()
    finally(function() os.remove(path) end)
    local prof = profiler.profile{activities = {"cpu"}, record_shapes = true,
      profile_memory = true, with_flops = true, with_stack = true}
    profiler.record_function('a "quoted"\nname', function()
      return dm.ones(2, 2):mm(dm.ones(2, 2))
    end)
    prof:stop()
    assert.is_true(prof:export_chrome_trace(path))
    local file <close> = assert(io.open(path))
    local trace = dm.json_decode(file:read "a").traceEvents
    assert.equal(#prof:events() + 1, #trace)
    assert.equal("M", trace[1].ph)
    local range, mm = trace[2], trace[#trace]
    assert.equal('a "quoted"\nname', range.name)
    assert.equal("user_annotation", range.cat)
    assert.equal("cpu_op", mm.cat)
    assert.equal("X", mm.ph)
    assert.equal("{{2, 2}, {2, 2}}", mm.args["Input Dims"])
    assert.equal(16, mm.args.FLOPs)
    assert.is_true(mm.ts >= range.ts and mm.ts + mm.dur <= range.ts + range.dur + 0.01)
    assert.equal(range.tid, mm.tid)
  end)

  it("gives nil and why where it cannot write", function()
    local prof = small_run()
    local done, text = prof:export_chrome_trace "/nowhere/at/all.json"
    assert.is_nil(done)
    assert.matches("^export_chrome_trace: cannot write '/nowhere/at/all.json'", text)
    done, text = prof:export_chrome_trace "/dev/full"
    assert.is_nil(done)
    assert.matches("^export_chrome_trace: ", text)
  end)
end)

describe("measure", function()
  it("gives seconds, peak bytes and the results", function()
    local m = profiler.measure(function(n, s)
      local t = dm.empty(n, {dtype = "uint8"})
      t:free()
      local t0 = dm.now()
      while dm.now() - t0 < 0.01 do end -- luacheck: ignore
      return s, nil, n
    end, 3 << 20, "text")
    assert.is_true(m.seconds >= 0.01 and m.seconds < 5)
    assert.equal(m.start_bytes + (3 << 20), m.peak_bytes)
    assert.same({"text", nil, 3 << 20}, {m[1], m[2], m[3]})
    assert.equal(3, m.n)
    assert.matches("^0%.%d+ s, peak %d", tostring(m))
  end)

  it("starts clean: garbage counts for nothing", function()
    for _ = 1, 8 do dm.empty(1 << 20) end
    local m = profiler.measure(function() end)
    assert.equal(dm.memory_allocated(DEVICE), m.peak_bytes)
    assert.equal(m.start_bytes, m.peak_bytes)
  end)

  it("counts the memory of the default device, or of the one named", function()
    local function work(n)
      dm.empty(n):free()
      dm.empty(1000, {device = "cpu", dtype = "uint8"}):free()
      return n
    end
    local m = profiler.measure(work, 1 << 20)
    assert.equal(dm.get_default_device(), m.device)
    assert.equal(m.start_bytes + (4 << 20), m.peak_bytes)
    m = profiler.measure({device = "cpu"}, work, 1 << 20)
    assert.equal(1 << 20, m[1])
    if DEVICE == "cpu" then
      assert.equal(m.start_bytes + (4 << 20), m.peak_bytes)
    else -- the second tensor, and a handle of the first may be there still
      local rise = m.peak_bytes - m.start_bytes
      assert.is_true(rise >= 1024 and rise < 4096, rise)
    end
    local scope <close> = profiler.measure{device = DEVICE}
    dm.empty(1 << 18):free()
    scope:stop()
    assert.equal(scope.start_bytes + (1 << 20), scope.peak_bytes)
    assert.refuses("unknown device 'mars'", function() profiler.measure({device = "mars"}) end)
    assert.refuses("did you mean 'device'", function() profiler.measure({devise = "cpu"}) end)
  end)

  it("is a scope too, and errors pass", function()
    local m
    do
      local scope <close> = profiler.measure()
      m = scope
      dm.empty(1 << 20):free()
      assert.is_nil(m.seconds)
      assert.matches("under way", tostring(m))
    end
    assert.is_true(m.seconds > 0)
    assert.equal(m.start_bytes + (4 << 20), m.peak_bytes)
    assert.refuses("mine", function() profiler.measure(function() error "mine" end) end)
  end)

  it("compares by the formulas of M5 and M7", function()
    local before, after = profiler.measure(function() end), profiler.measure(function() end)
    before.seconds, after.seconds = 13.9817, 7.4969
    before.peak_bytes, after.peak_bytes = 2061, 1035
    local c = after:compared_to(before)
    assert.equal("46.38", ("%.2f"):format(c.time_saved))
    assert.equal("1.865", ("%.3f"):format(c.speed_up))
    assert.equal("49.78", ("%.2f"):format(c.memory_saved))
    assert.equal("46.38% less time (1.865 times as fast), 49.78% less memory", tostring(c))
    assert.refuses("two measurements", function() after:compared_to{} end)
    assert.refuses("two measurements", function() after:compared_to(profiler.measure()) end)
  end)
end)
