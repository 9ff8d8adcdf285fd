-- Device parity, bit for bit: one seed draws the same numbers on the CPU and on CUDA.
local dm = require "demilune"
local both = require "spec.cuda.both"

local sizes = {{0}, {}, {1}, {3}, {5, 7}, {1031}, {3, 700}}

if both.missing() then return end

-- Two draws one after another: the second begins where the first one ended.
local function draws(what, f)
  both.agree(what, function(device)
    dm.manual_seed(41)
    f(device)
    return f(device)
  end)
end

describe("random numbers on cuda are the CPU's:", function()
  for _, name in ipairs{"rand", "randn"} do
    it(name, function()
      for _, dtype in ipairs(both.floats) do
        for _, size in ipairs(sizes) do
          draws(name .. dtype, function() return dm[name](size, {dtype = dtype}) end)
        end
      end
    end)
    it(name .. "_like", function()
      for _, dtype in ipairs(both.floats) do
        local function like() return dm[name .. "_like"](dm.zeros(9, 5, {dtype = dtype})) end
        draws(name .. dtype, like)
      end
    end)
  end

  it("uniform_ and normal_, dense and strided", function()
    for _, dtype in ipairs(both.floats) do
      for _, size in ipairs(sizes) do
        draws("uniform_", function() return dm.zeros(size, {dtype = dtype}):uniform_(-2.5, 7) end)
        draws("normal_", function() return dm.zeros(size, {dtype = dtype}):normal_(3, 0.7) end)
      end
      local function holes(fill)
        local t = dm.zeros(33, 20, {dtype = dtype})
        fill(t:t():slice(1, 2, 20, 3))
        return t
      end
      draws("uniform_", function() return holes(function(v) v:uniform_(1, 3) end) end)
      draws("normal_", function() return holes(function(v) v:normal_(1, 3) end) end)
      draws("bernoulli_", function() return holes(function(v) v:bernoulli_(0.3) end) end)
    end
  end)

  it("randint", function()
    for _, dtype in ipairs{"uint8", "int8", "int16", "int32", "int64", "float32", "float64"} do
      draws(dtype, function() return dm.randint(3, 119, {1031}, {dtype = dtype}) end)
    end
    draws("wide", function()
      return dm.randint(math.mininteger, math.maxinteger, {700})
    end)
  end)

  it("randperm", function()
    for _, n in ipairs{0, 1, 2, 100, 5000} do
      draws("randperm", function() return dm.randperm(n) end)
    end
    draws("int16", function() return dm.randperm(300, {dtype = "int16"}) end)
  end)

  it("bernoulli", function()
    for _, dtype in ipairs(both.dtypes) do
      draws(dtype, function() return dm.zeros(1031):to(dtype):bernoulli(0.3) end)
    end
    for _, dtype in ipairs(both.floats) do
      local function chances() return dm.linspace(0, 1, 1032):to(dtype):reshape(24, 43) end
      draws(dtype, function() return chances():bernoulli() end)
      draws(dtype, function() return chances():t():bernoulli() end)
      draws(dtype, function() return chances():flatten():slice(1, 2, 1032):bernoulli() end)
    end
  end)

  it("multinomial", function()
    for _, dtype in ipairs(both.floats) do
      local function weights() return dm.linspace(0, 3, 700):to(dtype) end
      draws(dtype, function() return weights():multinomial(300, {replacement = true}) end)
      draws(dtype, function() return weights():multinomial(600) end)
      local function rows() return weights():reshape(350, 2):t() end
      draws(dtype, function() return rows():multinomial(40, {replacement = true}) end)
      draws(dtype, function() return rows():multinomial(349) end)
    end
  end)

  it("standard_gamma, forward and backward", function()
    for _, dtype in ipairs(both.floats) do
      local function shapes() return dm.linspace(0, 40, 1032):to(dtype):reshape(24, 43) end
      draws(dtype, function() return shapes():standard_gamma() end)
      draws(dtype, function() return shapes():t():standard_gamma() end)
      draws(dtype, function()
        local a = (shapes() + 0.5):requires_grad_()
        a:standard_gamma():backward{gradient = shapes()}
        return a.grad
      end)
    end
    draws("empty", function() return dm.zeros(0):standard_gamma() end)
  end)

  it("dropout, forward and backward", function()
    for _, dtype in ipairs(both.floats) do
      for _, layout in ipairs{"dense", "transposed", "offset"} do
        local function run(backward)
          local x = dm.linspace(-3, 5, 1032):to(dtype):reshape(24, 43)
          if layout == "transposed" then x = x:t() end
          if layout == "offset" then x = x:flatten():slice(1, 2, 1032) end
          x = x:detach():requires_grad_()
          local y = dm.nn.functional.dropout(x, {p = 0.3})
          if not backward then return y:detach() end
          y:backward{gradient = dm.linspace(1, 2, x:numel()):to(dtype):reshape(x.shape)}
          return x.grad
        end
        draws(dtype .. layout, function() return run(false) end)
        draws(dtype .. layout, function() return run(true) end)
      end
    end
  end)

  it("the generator ends where the CPU's ends", function()
    local function after(device)
      return both.on(device, function()
        dm.manual_seed(5)
        dm.rand(7)
        dm.randn(9, {dtype = "float64"})
        dm.randint(5, {3})
        dm.randperm(11)
        dm.rand(5):bernoulli()
        dm.rand(5):standard_gamma()
        dm.rand(6):multinomial(2)
        return dm.get_rng_state().offset
      end)
    end
    assert.equal(after "cpu", after "cuda")
  end)
end)

describe("what only the device sees", function()
  it("is told when it is waited for", function()
    both.on("cuda", function()
      local function told(pattern, f)
        assert.refuses(pattern, function()
          f()
          dm.cuda.synchronize()
        end)
      end
      told("no probability", function() dm.tensor{0.5, 1.5}:bernoulli() end)
      told("no probability", function() dm.tensor{0.5, 0 / 0}:bernoulli() end)
      told("cannot be drawn", function() dm.tensor{1.0, -1}:multinomial(1) end)
      told("cannot be drawn", function() dm.tensor{0.0, 0}:multinomial(1, {replacement = true}) end)
      told("cannot be drawn", function() dm.tensor{1.0, 0}:multinomial(2) end)
      told("cannot be drawn", function() dm.tensor{1.0, 1 / 0}:multinomial(1) end)
      dm.cuda.synchronize() -- and once only
    end)
  end)
end)
