-- Random programs under nested regions give the dtypes and bits of casts by hand, with the same
-- number of casts; so do their gradients and second gradients. spec/amp/programs makes the programs
-- and states the rules. AUTOCAST_PROGRAMS is how many run; scripts/fuzz_autocast.lua runs more.

local dm = require "demilune"
local calls = require "spec.amp.programs.calls"
local device = require "spec.device"
local programs = require "spec.amp.programs"

-- The sanitizers make a run ten times slower, the emulated device several times.
local is_slow = (os.getenv "DEMILUNE_BUILD" or ""):find "asan" or device.type == "cuda"
local PROGRAMS = tonumber(os.getenv "AUTOCAST_PROGRAMS") or (is_slow and 200 or 1500)
local SEED = 20261121

local caller = require "demilune.caller"
local sink = caller.sink
setup(function() caller.sink = function() end end) -- complex numbers and the like warn
teardown(function() caller.sink = sink end)

local function run_text(text)
  assert(load("local dm, amp, programs = ...\n" .. text))(dm, dm.amp, programs)
end

-- A program of one call in one region, its leaves of these dtypes in turn.
local function alone(call, region, dtypes)
  local program = {seed = 0, leaves = {}, backward = call.once and 1 or 2}
  local refs = {}
  for i, literal in ipairs(call.slots) do
    refs[i] = "x" .. i
    program.leaves[i] = {name = refs[i], literal = literal, dtype = dtypes[(i - 1) % #dtypes + 1],
      grad = literal.g}
  end
  program.block = {{region = region, form = "close",
    body = {{call = call, refs = refs, result = "y1", seed = 1}}}}
  return program
end

describe("random programs under autocast", function()
  it("equal casts by hand: " .. PROGRAMS .. " of them", function()
    local fine, failed = 0, 0
    local function seen(_, ok)
      if ok then fine = fine + 1 else failed = failed + 1 end
    end
    for i = 1, PROGRAMS do
      local program = programs.new(SEED + i)
      local text, unsaid = programs.difference(program, nil, seen)
      if text then error(programs.report(program, text), 0) end
      assert.is_nil(unsaid)
    end
    assert.is_true(failed < fine / 10, failed .. " calls fail beside " .. fine)
  end)

  it("do so for each op by itself, by the lists of both device types", function()
    local compared = 0
    for _, name in ipairs(calls.names) do
      local dtypes = compared % 2 == 0 and {"float32"} or {"bfloat16", "float32"}
      for _, kind in ipairs{"cpu", "cuda"} do
        local program = alone(calls.by_name[name][1], {rules = kind, dtype = "float16"}, dtypes)
        local text, unsaid = programs.difference(program)
        if text then error(programs.report(program, text), 0) end
        compared = compared + (unsaid and 0 or 1)
      end
    end
    assert.is_true(compared > 1000, "only " .. compared)
  end)

  it("do so for each op with each policy of its own", function()
    local compared = 0
    for i, name in ipairs(calls.names) do
      for k, call in ipairs(calls.by_name[name]) do
        local word = ({"lower_precision", "fp32", "promote", "unlisted", "banned"})[(i + k) % 5 + 1]
        local region = {policy = {[name] = word}, rules = "cuda", dtype = "float16"}
        if name ~= "clone" and pcall(dm.amp.autocast, region, function() end) then
          local program = alone(call, region, {"bfloat16", "float32"})
          local text = programs.difference(program)
          if text then error(programs.report(program, text), 0) end
          compared = compared + 1
        end
      end
    end
    assert.is_true(compared > 500, "only " .. compared)
  end)

  it("are printed as Lua that runs", function()
    local region = 0
    for seed = 1, 40 do
      local program, runs = programs.new(seed), true
      local function seen(name, ok) if name == "backward" then runs = ok end end
      if not programs.difference(program, nil, seen) and runs then
        local text = programs.text(program)
        local ok, problem = pcall(run_text, text)
        if not ok then error(tostring(problem) .. "\n" .. text, 0) end
        region = region + (text:find "autocast" and 1 or 0)
      end
    end
    assert.is_true(region > 20, "only " .. region .. " with regions")
  end)
end)

describe("a program that differs", function()
  -- A rule that is wrong: an op is not listed.
  local function wrong(name)
    local tables = programs.tables()
    tables.cpu[name], tables.cuda[name] = nil, nil
    return tables
  end

  it("is found and shrunk to one call in a bare region", function()
    local tables, program = wrong "bmm", nil
    for seed = 1, 5000 do
      program = programs.new(seed)
      if programs.difference(program, tables) then break end
    end
    local small, how = programs.shrink(program, tables)
    assert.equal(1, #small.block)
    local region = small.block[1]
    assert.same({}, region.region)
    assert.equal("close", region.form)
    assert.equal(1, #region.body)
    assert.equal("bmm", region.body[1].call.name)
    for _, leaf in ipairs(small.leaves) do assert.equal(1, #leaf.literal.d) end
    assert.equal(0, small.backward)
    assert.equal(region.body[1].result .. "[1]: " .. device.low .. ", by hand float32", how)
  end)

  it("is told as Lua, which differs by that rule and not by the true ones", function()
    local program = alone(calls.by_name.mm[1], {}, {"float32"})
    local text = programs.text(program, wrong "mm")
    assert.matches("do local _ <close> = amp.autocast{}\n    y1 = {dm.mm%(x1, x2%)}\n  end", text)
    assert.refuses(device.low .. ", by hand float32", function()
      run_text((text:gsub("assert%b()\n", "\n")))
    end)
    run_text(programs.text(program))
    assert.matches("program 0: .*, by hand float32\nshrunk: .*\n%-%- program 0\n",
      programs.report(program, programs.difference(program, wrong "mm"), wrong "mm"))
  end)

  it("is noticed by a missing cast, a gradient, and autocast that is off", function()
    local mm = calls.by_name.mm[1]
    local program = alone(mm, {}, {"float32"})
    local casts = dm.amp.cast_count
    local calls_of_it = 0
    dm.amp.cast_count = function()
      calls_of_it = calls_of_it + 1
      return casts() + calls_of_it
    end
    local text = programs.difference(program)
    dm.amp.cast_count = casts
    assert.equal("3 casts, by hand 2", text)
    local grads, n = dm.autograd.grad, 0
    dm.autograd.grad = function(...)
      n = n + 1
      local a, b = grads(...)
      return n == 1 and a * 2 or a, b
    end
    text = programs.difference(program)
    dm.autograd.grad = grads
    assert.matches("^gradient of x1: element 1", text)
  end)
end)
