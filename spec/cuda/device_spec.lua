-- The device: availability and its reason, streams, events, pinned memory, out of memory, and
-- kernel faults that the host learns at the next synchronization.

local dm = require "demilune"
local both = require "spec.cuda.both"

local build = os.getenv "DEMILUNE_BUILD" or "build"

-- The output of a program in a new process with these environment variables.
local function run(variables, program)
  local path = os.tmpname()
  local file = assert(io.open(path, "w"))
  file:write("local dm = require 'demilune'\n", program)
  file:close()
  local command = ([[%s LUA_PATH="./lua/?.lua;./lua/?/init.lua;;" LUA_CPATH="./%s/lua/?.so;;" ]] ..
    "lua5.4 %s 2>&1"):format(variables, build, path)
  local pipe <close> = assert(io.popen(command))
  local text = pipe:read "a"
  os.remove(path)
  return (text:gsub("%s+$", ""))
end

if both.missing() then return end

local emulated = dm.cuda.get_device_name():find "^Emulated" ~= nil

describe("CUDA's device", function()
  it("tells what it is", function()
    local p = dm.cuda.get_device_properties "cuda:0"
    assert.equal(p.name, dm.cuda.get_device_name())
    local major, minor = dm.cuda.get_device_capability(0)
    assert.same({p.major, p.minor}, {major, minor})
    assert.is_true(p.total_memory > 0 and p.multi_processor_count > 0)
    local free, total = dm.cuda.mem_get_info()
    assert.is_true(free > 0 and free <= total)
    assert.equal(p.total_memory, total)
  end)

  it("is refused where there is none of that number", function()
    local n = dm.cuda.device_count()
    assert.refuses("no device cuda:" .. n .. ": there are " .. n, function()
      dm.zeros(1, {device = "cuda:" .. n})
    end)
    assert.refuses("wanted a CUDA device", function() dm.cuda.Stream "cpu" end)
  end)

  if emulated then
    it("says why it is not there", function()
      local ask = "print(dm.cuda.is_available()) print(dm.cuda.device_count())" ..
        "print(select(2, pcall(dm.zeros, 1, {device = 'cuda'})))"
      local text = run("DEMILUNE_EMULATED_DEVICES=0", ask)
      assert.matches("^false\tthe driver finds no NVIDIA GPU", text)
      assert.matches("no CUDA device: the driver finds no", text)
      assert.matches("^false\tthere is no NVIDIA driver", run("DEMILUNE_EMULATED_DEVICES=-1", ask))
      assert.matches("^false\tDEMILUNE_CUDA=0 switches it off", run("DEMILUNE_CUDA=0", ask))
      assert.matches("^false\tthis build has no CUDA part", run("DEMILUNE_CUDA=/nowhere.so", ask))
    end)

    it("is not opened by those who do not ask", function()
      assert.equal("6.0\tnil", run("", [[
        print(dm.ones(2, 3):sum():item(), io.open "/proc/self/maps":read "a":match "cuda%.so")]]))
    end)

    it("counts the bytes that launches read and write", function()
      local text = run("DEMILUNE_EMULATED_TRAFFIC=1 DEMILUNE_EMULATED_LATE=0", [[
        local _ <close> = dm.device "cuda"
        local function traffic(f)
          dm.cuda.synchronize()
          local n = dm.cuda._count "work"
          f()
          for i = n + 1, dm.cuda._count "work" do
            local _, _, read, written = dm.cuda._work(i)
            print(read >> 10, written >> 10)
          end
        end
        local a, b = dm.ones(512, 512), dm.ones(512, 512)
        traffic(function() return a + b end)
        traffic(function() a:add_(b) end)
        traffic(function() return a:to "bfloat16" end)
        traffic(function() return a:clone() end)
        traffic(function() return dm.zeros(512, 512) end)
        print(dm.cuda._count "read" > 0, dm.cuda._count "written" > 0)]])
      assert.equal("2048\t1024\n2048\t1024\n1024\t512\n1024\t1024\n0\t1024\ntrue\ttrue", text)
      assert.equal("0", run("", "dm.ones(9, {device = 'cuda'}) print(dm.cuda._count 'read')"))
    end)

    it("at the end of its memory names the largest tensors, and goes on", function()
      local text = run("DEMILUNE_EMULATED_MEMORY=67108864", [[
        local kept = {}
        print(select(2, pcall(function()
          for i = 1, 100 do kept[i] = dm.zeros(1024, 1024, {device = "cuda"}) end
        end)))
        kept = nil
        print(dm.ones(2, {device = "cuda"}):sum():item())
        print(dm.memory_stats "cuda".num_ooms > 0, dm.memory_stats "cuda".num_alloc_retries > 0)]])
      assert.matches("cuda:0: out of memory: 4%.0 MiB asked for, 64%.0 MiB in use", text)
      assert.matches("largest tensors have 4%.0, 4%.0", text)
      assert.matches("\n2%.0\ntrue\ttrue$", text)
    end)

    it("waits after each op where DEMILUNE_SYNC asks for it", function()
      local program = [[
        local x = dm.ones(3, {device = "cuda"})
        local i = dm.tensor({7}, {device = "cuda"})
        local ok, text = pcall(function() return x:index_select(i, {dim = 1}) end)
        print(ok, ok and select(2, pcall(dm.synchronize, "cuda")) or text)]]
      assert.matches("^true\t.*index_select: index 7", run("", program))
      assert.matches("^false\t.*index_select: index 7", run("DEMILUNE_SYNC=1", program))
    end)
  end

  it("reports a fault at the next synchronization, once, and works on", function()
    local x = dm.randn(4, 3, {device = "cuda"})
    local i = dm.tensor({1, 9, 11}, {device = "cuda"})
    local y = x:index_select(i, {dim = 1})
    -- which of two faults a GPU meets first is its own affair
    local _, text = pcall(function() y:totable() end)
    assert.is_truthy(tostring(text):find("index_select: index 9 (element 2) is out of range, " ..
      "wanted 1 to 4", 1, true) or tostring(text):find("index 11 (element 3)", 1, true), text)
    assert.equal(3, #y:totable())
    assert.equal(x:cpu()[1][2]:item(), y[1][2]:item())
    local z = dm.tensor({6, 7}, {device = "cuda"}) // dm.tensor({2, 0}, {device = "cuda"})
    assert.refuses("integer division by zero", function() dm.cuda.synchronize() end)
    assert.equal(3, z[1]:item())
  end)

  it("copies between its kind", function()
    if dm.cuda.device_count() < 2 then return end
    local x = dm.randn(5, 7, {device = "cuda:0"})
    local y = x:to "cuda:1"
    assert.equal("cuda:1", y.device)
    assert.is_true(y:cpu():equal(x:cpu()))
    assert.is_true(y:mul(2):to("cuda:0"):equal(x * 2))
    assert.refuses("tensors on cuda:0 and cuda:1", function() return x + y end)
  end)
end)

describe("what makes tensors", function()
  it("makes them on the device that is named", function()
    local size = {2, 3}
    local makers = {
      zeros = size, ones = size, empty = size, rand = size, randn = size, eye = {3, 4},
      full = {size, 7}, arange = {4}, linspace = {0, 1, 5}, randint = {1, 9, size},
      randperm = {6}, tensor = {{1.0, 2.0}},
    }
    for name, args in pairs(makers) do
      for _, device in ipairs{"cuda:0", "cpu"} do
        local given = table.move(args, 1, #args, 1, {})
        if name == "zeros" or name == "ones" or name == "empty" or name:find "^randn?$" then
          given = {size}
        end
        given[#given + 1] = {device = device}
        assert.equal(device, dm[name](table.unpack(given)).device, name)
      end
    end
  end)

  it("like another one lies beside it, or where it is told to", function()
    local args = {full_like = {2.5}}
    for _, name in ipairs{"zeros", "ones", "empty", "full", "rand", "randn"} do
      name = name .. "_like"
      for _, from in ipairs{"cpu", "cuda:0"} do
        local x = dm.randn(3, 5, {device = from}):t()
        local function like(options)
          dm.manual_seed(4)
          local given = {x, table.unpack(args[name] or {})}
          given[#given + 1] = options
          return dm[name](table.unpack(given))
        end
        local beside = like()
        assert.equal(from, beside.device, name)
        for _, to in ipairs{"cpu", "cuda:0"} do
          local y = like{device = to, dtype = "float64"}
          assert.same({to, "float64", {5, 3}}, {y.device, y.dtype, {table.unpack(y.shape)}}, name)
          if name ~= "empty_like" then
            local here = like{device = from, dtype = "float64"}
            both.alike(here:cpu(), y:cpu(), name, 1e-14)
          end
        end
      end
    end
  end)
end)

describe("streams", function()
  it("are current inside their scope", function()
    local s, default = dm.cuda.Stream(), dm.cuda.default_stream()
    assert.is_true(dm.cuda.current_stream() == default)
    do
      local _ <close> = dm.cuda.stream(s)
      assert.is_true(dm.cuda.current_stream() == s)
      if dm.cuda.device_count() > 1 then
        assert.is_true(dm.cuda.current_stream(1) == dm.cuda.default_stream(1))
      end
    end
    assert.is_true(dm.cuda.current_stream() == default)
    assert.same({true, 7}, {dm.cuda.stream(s, function(v)
      return dm.cuda.current_stream() == s, v
    end, 7)})
    pcall(dm.cuda.stream, s, error)
    assert.is_true(dm.cuda.current_stream() == default)
  end)

  it("belong to the coroutine that switched", function()
    local s = dm.cuda.Stream()
    local co = coroutine.wrap(function()
      local _ <close> = dm.cuda.stream(s)
      coroutine.yield(dm.cuda.current_stream() == s)
      return dm.cuda.current_stream() == s
    end)
    assert.is_true(co())
    assert.is_false(dm.cuda.current_stream() == s)
    assert.is_true(co())
  end)

  it("wait for one another, and are waited for", function()
    local s = dm.cuda.Stream()
    local x, y = dm.randn(64, 64, {device = "cuda"})
    s:wait_stream(dm.cuda.current_stream())
    dm.cuda.stream(s, function() y = x:matmul(x) end)
    x:record_stream(s)
    local done = s:record_event(dm.cuda.Event())
    dm.cuda.current_stream():wait_event(done)
    assert.is_true(y:equal(x:matmul(x)))
    s:synchronize()
    assert.is_true(s:query() and done:query())
    assert.refuses("another device", function() dm.ones(1, {device = "cpu"}):record_stream(s) end)
  end)

  it("are timed by events", function()
    local from = dm.cuda.Event{enable_timing = true}:record()
    local x = dm.randn(100, {device = "cuda"}):exp()
    local to = dm.cuda.Event{enable_timing = true}:record()
    to:synchronize()
    assert.is_true(from:elapsed_time(to) >= 0 and x:numel() == 100)
    assert.refuses("cuda", function() dm.cuda.Event():record():elapsed_time(to) end)
    assert.refuses("unknown option 'timing'", function() dm.cuda.Event{timing = true} end)
  end)
end)

describe("pinned memory", function()
  it("holds a dense copy, which devices read by themselves", function()
    local x = dm.randn(3, 4, {device = "cpu"}):t()
    local p = x:pin_memory()
    assert.is_true(p:is_pinned() and p:is_contiguous() and p:equal(x))
    assert.is_false(x:is_pinned())
    local y = p:to("cuda", {non_blocking = true})
    dm.cuda.synchronize()
    assert.is_true(y:cpu():equal(x))
    assert.refuses("on the CPU", function() y:pin_memory() end)
    assert.equal(0, dm.empty(0, {device = "cpu"}):pin_memory():numel())
  end)
end)
