-- detect_anomaly names the op, the output and the script's line of the forward call where a
-- gradient became NaN (plumbing: messages, scopes, coroutines, no leaks).

local dm = require "demilune"
local hooks = require("demilune.core")._test
local autograd, nn = dm.autograd, dm.nn
local caller = require "demilune.caller"

local warnings, sink
setup(function()
  sink, warnings = caller.sink, {}
  caller.sink = function(text) warnings[#warnings + 1] = text end
end)
teardown(function() caller.sink = sink end)

local function leaf(v) return dm.tensor({v}, {requires_grad = true}) end
local function here() return debug.getinfo(2, "l").currentline end
local function error_of(fn) return select(2, pcall(fn)) end

describe("detect_anomaly", function()
  it("sqrt(0) * 0 names sqrt, output 1, and the line of the forward", function()
    local line
    local text = error_of(function()
      autograd.detect_anomaly(function()
        local x = leaf(0.0)
        line = here() + 1
        local y = x:sqrt()
        local z = y * 0
        z:backward()
      end)
    end)
    assert.matches("backward of sqrt: its output 1, the gradient of input 1, is NaN", text)
    assert.matches("forward of sqrt: [%./]*spec/anomaly_spec%.lua:" .. line .. "\n\t", text)
    assert.matches("^[%./]*spec/anomaly_spec%.lua:" .. line + 2 .. ": ", text)
    assert.is_false(autograd.is_anomaly_enabled())
  end)

  it("check_nan = false lets a NaN pass, and keeps the source lines", function()
    local x = leaf(0.0)
    autograd.detect_anomaly({check_nan = false}, function() (x:sqrt() * 0):backward() end)
    assert.is_true(x.grad:isnan():item())
    local h = x * 1
    local text = error_of(function()
      local _ <close> = autograd.detect_anomaly{check_nan = false}
      local y = h:square()
      dm.no_grad(function() h:add_(1) end)
      y:backward()
    end)
    assert.matches("changed in place.*\nforward of square: .*anomaly_spec", text)
  end)

  it("sqrt(0) gives an infinite gradient and no error", function()
    local x = leaf(0.0)
    autograd.detect_anomaly(function() x:sqrt():backward() end)
    assert.equal(math.huge, x.grad:item())
  end)

  it("log(-1) is NaN forward, its gradient is -1: no error", function()
    local x = leaf(-1.0)
    autograd.detect_anomaly(function() x:log():backward() end)
    assert.equal(-1, x.grad:item())
  end)

  it("a function of one's own is named, and its output counted from 1", function()
    local M = autograd.Function{
      name = "M",
      forward = function(_, a, n, b) return a * n + b end,
      backward = function(_, gy) return gy, nil, gy * (0 / 0) end,
    }
    local N = autograd.Function{
      name = "N", forward = function(_, a, b) return a + b end,
      backward = function(_, gy) return gy, gy * (0 / 0) end,
    }
    local _ <close> = autograd.detect_anomaly()
    assert.refuses("backward of M: its output 3.*forward of M: .*anomaly_spec", function()
      M(leaf(1.0), 2, leaf(1.0)):backward()
    end)
    assert.refuses("backward of N: its output 2", function() N(leaf(1.0), leaf(1.0)):backward() end)
    -- a gradient that nobody wants is not looked at
    N(leaf(1.0), dm.ones(1)):backward()
  end)

  it("a scope restores both switches, a plain call stays until it is closed", function()
    local function now()
      return {autograd.is_anomaly_enabled(), autograd.is_anomaly_check_nan_enabled()}
    end
    assert.same({false, true}, now())
    do
      local _ <close> = autograd.detect_anomaly{check_nan = false}
      assert.same({true, false}, now())
      autograd.detect_anomaly(function() assert.same({true, true}, now()) end)
      assert.same({true, false}, now())
      pcall(autograd.detect_anomaly, function() error "out" end)
      assert.same({true, false}, now())
    end
    assert.same({false, true}, now())
    local switch = autograd.set_detect_anomaly(true, {check_nan = false})
    assert.same({true, false}, now())
    do
      local _ <close> = autograd.set_detect_anomaly(false)
      assert.same({false, true}, now())
    end
    assert.same({true, false}, now())
    switch:close()
    switch:close()
    assert.same({false, true}, now())
  end)

  it("wraps a function", function()
    local inside = autograd.detect_anomaly():wrap(function(v)
      return v, autograd.is_anomaly_enabled()
    end)
    assert.is_false(autograd.is_anomaly_enabled())
    assert.same({3, true}, {inside(3)})
    assert.is_false(autograd.is_anomaly_enabled())
  end)

  it("warns once that it is slow", function()
    assert.equal(1, #warnings)
    assert.matches("slows", warnings[1])
  end)

  it("names an unknown option", function()
    assert.refuses("did you mean 'check_nan'", function()
      autograd.detect_anomaly{check_nans = true}
    end)
  end)

  it("tells the path of the module and the calls that led there", function()
    local Block = nn.Module:extend "Block"
    function Block:init() self.lin = nn.Linear(2, 2) end
    function Block:forward(x) return (self.lin(x) * 0):sqrt() * 0 end
    local Net = nn.Module:extend "Net"
    function Net:init() self.blocks = {Block(), Block()} end
    function Net:forward(x) return self.blocks[2](x) end
    local net = Net()
    local text = error_of(function()
      autograd.detect_anomaly(function() net(dm.ones(1, 2)):sum():backward() end)
    end)
    assert.matches("forward of sqrt: %S*anomaly_spec%.lua:%d+ in model%.blocks%[2%] Block\n", text)
    local _, frames = text:gsub("\n\t", "")
    assert.is_true(frames >= 3)
    assert.is_nil(text:find("demilune/nn", 1, true))
  end)

  it("adds the source line to an error that Lua threw, and leaves other values", function()
    local function failing(value)
      return autograd.Function{name = "Bad", forward = function(_, x) return x * 1 end,
        backward = function() error(value, 0) end}
    end
    local function run(value)
      return error_of(function()
        local _ <close> = autograd.detect_anomaly()
        failing(value)(leaf(1.0)):backward()
      end)
    end
    assert.matches("^oops\nforward of Bad: .*anomaly_spec%.lua:%d+\n", run "oops")
    local value = {}
    assert.equal(value, run(value))
    assert.equal("oops", error_of(function() failing "oops"(leaf(1.0)):backward() end))
  end)

  it("finds a NaN in half precision and behind a hook, and not in what went before it", function()
    local _ <close> = autograd.detect_anomaly()
    local x = leaf(2.0)
    local h = x:half()
    local y = h:exp()
    y:register_hook(function(g) return g * (0 / 0) end)
    assert.refuses("backward of exp: its output 1", function() y:sum():backward() end)
  end)

  it("belongs to the coroutine that switched it on, and those it starts", function()
    local co = coroutine.wrap(function()
      local _ <close> = autograd.detect_anomaly()
      coroutine.yield(coroutine.wrap(function() return autograd.is_anomaly_enabled() end)())
    end)
    assert.is_true(co())
    assert.is_false(autograd.is_anomaly_enabled())
  end)

  it("leaves nothing behind", function()
    local function once()
      local x = leaf(0.0)
      autograd.detect_anomaly(function()
        local kept = x:exp() * 2 -- luacheck: ignore
        pcall(function() (x:sqrt() * 0):backward() end)
      end)
    end
    local function live()
      collectgarbage()
      collectgarbage()
      return hooks.alloc_live()
    end
    once()
    local before = live()
    for _ = 1, 3 do once() end
    assert.equal(before, live())
  end)
end)
