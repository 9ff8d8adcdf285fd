-- The profiler reports the time that ops take on cuda.
local dm = require "demilune"
local both = require "spec.cuda.both"
local profiler = dm.profiler

if both.missing() then
  return describe("a profile on cuda", function() pending "no CUDA device" end)
end

local function work()
  local a = dm.randn(64, 64, {device = "cuda", requires_grad = true})
  profiler.record_function("step", function()
    (a:mm(a):relu() * 2):sum():backward()
  end)
  return dm.ones(3, {device = "cpu"}):exp()
end

local function profiled(opts, fn)
  local prof = profiler.profile(opts)
  local _ <close> = prof
  fn()
  prof:stop()
  return prof
end

local function by_name(list)
  local entries = {}
  for _, e in ipairs(list) do entries[e.key] = e end
  return entries
end

describe("a profile on cuda", function()
  it("times each op there, and what it calls", function()
    local prof = profiled(nil, work)
    local ops = by_name(prof:key_averages())
    assert.is_true(ops.mm.self_device_time_total > 0)
    assert.is_true(ops.relu.device_time_total > 0)
    assert.equal(0, ops.exp.device_time_total) -- it ran on the CPU
    assert.equal(ops.mm.device_time_total / ops.mm.count, ops.mm.device_time)
    assert.equal(0, ops.step.self_device_time_total)
    assert.is_true(ops.step.device_time_total > ops.mm.device_time_total)
    local self_total, roots = 0, 0
    for _, e in ipairs(prof:events()) do
      self_total = self_total + e.self_device_time_total
      if e.top_level then roots = roots + e.device_time_total end
      assert.is_true(e.device_time_total >= e.self_device_time_total)
    end
    assert.is_true(self_total > 0 and math.abs(self_total - roots) < 1e-6 * roots)
  end)

  it("has the columns, after the CPU's, where there is such time", function()
    local text = profiled(nil, work):key_averages():table{sort_by = "self_cuda_time_total"}
    assert.is_truthy(text:find("CPU time avg%s+Self CUDA%s+Self CUDA %%%s+CUDA total%s+"
      .. "CUDA time avg"))
    assert.is_truthy(text:find "Self CUDA time total: %d")
    local function plainly() dm.ones(3, {device = "cpu"}):exp() end
    local plain = profiled(nil, plainly):key_averages():table()
    assert.is_nil(plain:find "CUDA")
  end)

  it("takes such times only where it was asked for them", function()
    local syncs = dm.cuda._count "sync"
    local prof = profiled({activities = {"cpu"}}, work)
    assert.equal(syncs, dm.cuda._count "sync")
    assert.equal(0, by_name(prof:key_averages()).mm.device_time_total)
    assert.is_true(by_name(profiled({activities = {"cuda"}}, work):key_averages())
      .mm.device_time_total > 0)
  end)

  it("goes on after a stop, and lets the device's events go", function()
    local prof = profiled(nil, work)
    local once = by_name(prof:key_averages()).mm.device_time_total
    prof:start()
    work()
    prof:stop()
    local mm = by_name(prof:key_averages()).mm
    assert.is_true(mm.device_time_total > once)
  end)

  it("leaves out work that failed, and keeps the rest", function()
    local prof = profiled(nil, function()
      dm.ones(4, {device = "cuda"}):exp()
      assert.is_false(pcall(function() return dm.ones(2, {device = "cuda"}):multinomial(5) end))
      dm.ones(4, {device = "cuda"}):log()
    end)
    local ops = by_name(prof:key_averages())
    assert.is_true(ops.exp.device_time_total > 0 and ops.log.device_time_total > 0)
  end)

  it("draws a row for each device in the trace, by the host's clock", function()
    local prof, path = profiled(nil, work), os.tmpname()
    assert.is_true(prof:export_chrome_trace(path))
    local file <close> = assert(io.open(path))
    local text = file:read "a"
    os.remove(path)
    assert.is_truthy(text:find('"args": {"name": "CUDA"}', 1, true))
    assert.is_truthy(text:find('"args": {"name": "cuda:0"}', 1, true))
    local first = math.huge
    for _, e in ipairs(prof:events()) do first = math.min(first, e.start) end
    local n = 0
    for ts, dur in text:gmatch '"cat": "kernel".-"ts": ([%d.]+), "dur": ([%d.]+)' do
      n = n + 1
      assert.is_true(tonumber(ts) >= first and tonumber(ts) < first + 60e6)
      assert.is_true(tonumber(dur) >= 0)
    end
    assert.is_true(n >= 4)
  end)
end)
