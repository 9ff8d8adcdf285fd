-- Ops written in Lua, where samples and golden values do not show them: random numbers, dtypes,
-- shapes that are properties, views, help.

local dm = require "demilune"
require "spec.helper"

-- Mean and variance of the elements.
local function moments(x)
  x = x:double()
  return x:mean():item(), x:var():item()
end

-- Within five standard errors of n draws; their fourth moment is at most kurtosis var^2.
local function assert_moments(x, mean, var, kurtosis)
  local n, m, v = x:numel(), moments(x)
  assert.is_true(math.abs(m - mean) < 5 * math.sqrt(var / n), ("mean %g, wanted "
    .. "%g"):format(m, mean))
  assert.is_true(math.abs(v - var) < 5 * var * math.sqrt(kurtosis / n),
    ("variance %g, wanted %g"):format(v, var))
end

describe("random numbers", function()
  local n = 40000
  before_each(function() dm.manual_seed(3) end)

  it("of exponential_, log_normal_, geometric_ and random_ have their mean and variance", function()
    for _, dtype in ipairs{"float32", "float64"} do
      local x = dm.empty(n, {dtype = dtype})
      assert_moments(x:exponential_(2), 0.5, 0.25, 9)
      assert_moments(x:exponential_{lambd = 0.5}, 2, 4, 9)
      assert_moments(x:log_normal_(0, 0.5), math.exp(0.125), (math.exp(0.25) - 1) * math.exp(0.25),
        9)
      assert_moments(x:geometric_(0.25), 4, 12, 10)
      assert_moments(x:random_(9), 5, 80 / 12, 2)
      assert_moments(x:random_(-2, 2), 0, 2, 2)
    end
    assert.is_true(dm.empty(n, {dtype = "uint8"}):random_():amax():item() > 250)
  end)

  it("of cauchy_ have their quartiles", function()
    local x = dm.empty(n):cauchy_(1, 2):sort()
    assert.is_true(math.abs(x[n // 2]:item() - 1) < 0.1)
    assert.is_true(math.abs(x[n // 4]:item() + 1) < 0.15)
    assert.is_true(math.abs(x[3 * n // 4]:item() - 3) < 0.15)
    assert.is_true(x:isfinite():all():item())
  end)

  it("of poisson have their rate as mean and variance, small or large", function()
    for _, rate in ipairs{0.3, 4, 9.9, 10.5, 60, 2000, 1e9} do
      local x = dm.poisson(dm.full({n}, rate + 0.0))
      assert_moments(x, rate, rate, 3 + 1 / rate)
      assert.is_true(x:eq(x:floor()):all():item() and x:amin():item() >= 0)
    end
    assert.same({0, 0}, dm.poisson(dm.zeros(2)):totable())
    assert.refuses("a rate is not 0 or above", function() dm.poisson(dm.tensor{1.0, -1}) end)
  end)

  it("of uniform are below 1 in 16 bits, too, and those of float32 cut short", function()
    for dtype, eps in pairs{float16 = 2 ^ -11, bfloat16 = 2 ^ -8} do
      dm.manual_seed(11)
      local wide = dm.rand(300000)
      dm.manual_seed(11)
      local x = dm.rand({300000}, {dtype = dtype}):float()
      assert.equal(1 - eps, x:max():item())
      assert.is_true(x:le(wide):all():item())
      assert.is_true(x:gt(wide * (1 - 2 * eps)):logical_or(wide:eq(0)):all():item())
      assert.equal(1 - eps, dm.zeros({300000}, {dtype = dtype}):uniform_():max():item())
    end
  end)

  it("of normal take tensors and numbers", function()
    assert_moments(dm.normal(2, 3, {n}), 2, 9, 3)
    assert_moments(dm.normal(dm.full({n}, 2.0), 3), 2, 9, 3)
    assert_moments(dm.normal(1, dm.full({n}, 2.0)), 1, 4, 3)
    assert.same({2, 3}, {table.unpack(dm.normal(dm.zeros(2, 1), dm.ones(3)).shape)})
    assert.refuses("wanted a size too", function() dm.normal(0, 1) end)
    assert.refuses("std is %-1", function() dm.normal(dm.zeros(2), -1) end)
  end)

  it("take a generator, and the same one gives the same numbers", function()
    local function draw()
      local g = dm.Generator()
      g:manual_seed(7)
      return dm.empty(5):exponential_(1, {generator = g}):totable()
    end
    assert.same(draw(), draw())
  end)

  it("of randint_like count as math.random", function()
    local x = dm.randint_like(dm.zeros(200), 3)
    assert.equal(1, x:amin():item())
    assert.equal(3, x:amax():item())
    assert.equal("float32", x.dtype)
    assert.refuses("lambd is 0, wanted above 0", function() x:exponential_(0) end)
  end)
end)

describe("the default dtype", function()
  after_each(function() dm.set_default_dtype "float32" end)

  it("is that of floats without a dtype of their own", function()
    assert.equal("float32", dm.get_default_dtype())
    dm.set_default_dtype "float64"
    for _, x in ipairs{dm.zeros(2), dm.rand(2), dm.tensor(1.5), dm.tensor{1, 2.5}, dm.full({1},
      0.5),
      dm.linspace(0, 1, 3), dm.arange(2):sqrt(), dm.arange(2) / 2, dm.arange(2) * 0.5,
      dm.arange(2):clamp{min = 0.5}, dm.signal.windows.hann(3)} do
      assert.equal("float64", x.dtype)
    end
    assert.equal("int64", dm.tensor{1, 2}.dtype)
    assert.equal("float32", (dm.zeros(2, {dtype = "float32"}) * 0.5).dtype)
    assert.equal("float64", dm.finfo().dtype)
    assert.equal("float64", coroutine.wrap(function() return dm.ones(1).dtype end)())
  end)

  it("is a float", function()
    assert.refuses("set_default_dtype: int64 given, wanted a float",
      function() dm.set_default_dtype "int64" end)
  end)
end)

describe("deterministic algorithms", function()
  after_each(function() dm.use_deterministic_algorithms(false) end)

  it("are asked for, and are so in coroutines made later", function()
    assert.is_false(dm.are_deterministic_algorithms_enabled())
    dm.use_deterministic_algorithms(true)
    assert.is_true(dm.are_deterministic_algorithms_enabled())
    assert.is_true(coroutine.wrap(dm.are_deterministic_algorithms_enabled)())
  end)

  it("are switched by a boolean", function()
    for _, mode in ipairs{1, "true", {}} do
      assert.refuses(("use_deterministic_algorithms: %s given, wanted true or false")
        :format(type(mode)), function() dm.use_deterministic_algorithms(mode) end)
    end
  end)
end)

describe("a tensor", function()
  local x = dm.arange(6):float():reshape(2, 3)

  it("has its transposes as properties", function()
    assert.same(x:t():totable(), x.T:totable())
    assert.same(x:t():totable(), x.mT:totable())
    assert.same(x:t():totable(), x.H:totable())
    assert.same({4, 3, 2}, {table.unpack(dm.zeros(4, 2, 3).mH.shape)})
    assert.same({3}, {table.unpack(dm.zeros(3).T.shape)})
    assert.refuses("T: x has shape {1, 2, 3}, wanted a matrix; hint: x.mT", function()
      return dm.zeros(1, 2, 3).T
    end)
    assert.refuses("mT: x has shape {3}, wanted a matrix or several", function()
      return dm.zeros(3).mT
    end)
  end)

  it("makes others of its dtype and device", function()
    local like = dm.zeros(1, {dtype = "float16"})
    for _, y in ipairs{like:new_zeros(2, 3), like:new_ones({2, 3}), like:new_full({2, 3}, 7),
      like:new_empty(2, 3), like:new_tensor{{1, 2, 3}, {4, 5, 6}}} do
      assert.equal("float16", y.dtype)
      assert.same({2, 3}, {table.unpack(y.shape)})
    end
    assert.equal("int32", like:new_zeros(2, {dtype = "int32"}).dtype)
    assert.is_true(like:new_ones(2, {requires_grad = true}).requires_grad)
  end)

  it("unfolds into views, as PyTorch's", function()
    local y = dm.zeros(7)
    local windows = y:unfold(1, 3, 2)
    assert.same({3, 3}, {table.unpack(windows.shape)})
    windows[2]:fill_(1)
    assert.same({0, 0, 1, 1, 1, 0, 0}, y:totable())
    assert.same({1, 9, 4}, {table.unpack(dm.nn.functional.unfold(dm.zeros(1, 1, 4, 4), 3).shape)})
    assert.refuses("unfold: size 8 and step 1 for 7 elements", function() y:unfold(1, 8, 1) end)
  end)

  it("resizes in place and keeps its first elements", function()
    local y = dm.arange(6):float()
    assert.equal(y, y:resize_(2, 2))
    assert.same({{1, 2}, {3, 4}}, y:totable())
    assert.same({1, 2, 3, 4}, table.move(y:resize_as_(dm.zeros(8)):totable(), 1, 4, 1, {}))
  end)

  it("gives its elements under PyTorch's name", function()
    assert.same({{1, 2, 3}, {4, 5, 6}}, x:tolist())
    assert.equal(3, dm.tensor(3):tolist())
  end)

  it("changes in place where the function has such a form", function()
    local y = dm.tensor{1.0, 5.0}
    assert.equal(y, y:clamp_max_(3))
    assert.same({1, 3}, y:totable())
    assert.same({0, 1}, y:floor_divide_(2):totable())
  end)
end)

describe("dtypes", function()
  it("tell their numbers", function()
    local f = dm.finfo "float16"
    assert.same({65504, -65504, 2 ^ -10, 2 ^ -14, 2 ^ -24, 16},
      {f.max, f.min, f.eps, f.tiny, f.smallest_subnormal, f.bits})
    assert.equal(0x1.fffffffffffffp1023, dm.finfo("float64").max)
    assert.equal(3.4028234663852886e38, dm.finfo("float32").max)
    local i = dm.iinfo "int64"
    assert.same({math.maxinteger, math.mininteger, 64}, {i.max, i.min, i.bits})
    assert.same({255, 0}, {dm.iinfo("uint8").max, dm.iinfo("uint8").min})
    assert.refuses("finfo: dtype is 'int8', wanted a float; hint: iinfo",
      function() dm.finfo "int8" end)
    assert.is_true(dm.is_floating_point(dm.zeros(1)))
    assert.is_false(dm.is_floating_point(dm.zeros(1, {dtype = "bool"})))
  end)
end)

-- The dtypes are PyTorch's.
describe("promotion", function()
  local DTYPES = {"bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16",
    "float32", "float64"}

  it("of two dtypes is that of their sum", function()
    for _, a in ipairs(DTYPES) do
      for _, b in ipairs(DTYPES) do
        local sum = dm.ones(2, {dtype = a}) + dm.ones(2, {dtype = b})
        assert.equal(sum.dtype, dm.promote_types(a, b))
      end
    end
    assert.equal("int16", dm.promote_types("uint8", "int8"))
    assert.equal("float32", dm.promote_types("float16", "bfloat16"))
    assert.refuses("promote_types: type2 is int33, wanted a dtype; did you mean 'int32'?",
      function() dm.promote_types("int8", "int33") end)
  end)

  it("of tensors and numbers minds dims", function()
    local ints, none = dm.ones(2, {dtype = "int8"}), dm.ones({}, {dtype = "float64"})
    assert.equal("int8", dm.result_type(ints, 3))
    assert.equal("float32", dm.result_type(ints, 2.5))
    assert.equal("float64", dm.result_type(ints, none))
    assert.equal("float16", dm.result_type(none, ints:half()))
    assert.equal("int8", dm.result_type(dm.ones({}, {dtype = "int64"}), ints))
    assert.equal("float64", dm.result_type(2.5, none))
    assert.equal("int64", dm.result_type(1, true))
    assert.equal("float32", dm.result_type(1, 2.5))
    assert.equal("int8", dm.result_type(ints, true))
  end)

  it("tells what may be written into what", function()
    local can = {{"bool", "int8"}, {"int8", "uint8"}, {"int64", "float16"}, {"float64", "float16"}}
    for _, pair in ipairs(can) do assert.is_true(dm.can_cast(table.unpack(pair))) end
    for _, pair in ipairs{{"float16", "int64"}, {"int8", "bool"}, {"float32", "bool"}} do
      assert.is_false(dm.can_cast(table.unpack(pair)))
    end
    assert.refuses("can_cast: 'to' is missing", function() dm.can_cast("int8") end)
  end)
end)

describe("unravel_index", function()
  it("gives positions in each dim", function()
    local shape = {2, 3, 4}
    local x = dm.arange(24):view(shape)
    local at = dm.tensor{{1, 24, 7}, {-1, -24, 13}}
    local parts = dm.unravel_index(at, shape)
    assert.equal(3, #parts)
    assert.same({{1, 24, 7}, {24, 1, 13}}, x[parts]:totable())
    assert.equal("int32", dm.unravel_index(at:int(), shape)[2].dtype)
    assert.same({{}}, {dm.unravel_index(dm.tensor(1), {})})
    assert.same({0}, dm.unravel_index(dm.zeros(0, {dtype = "int64"}), {0, 2})[1].shape)
    assert.equal(5, dm.unravel_index(dm.tensor(5), 6)[1]:item())
  end)

  it("refuses what lies outside, and other dtypes", function()
    local function refused(pattern, indices, shape)
      assert.refuses(pattern, function() dm.unravel_index(indices:cpu(), shape) end)
    end
    refused("indices are from 1 to 7, wanted 1 to 6, or %-6 to %-1", dm.tensor{1, 7}, {2, 3})
    refused("indices are from 0 to 2", dm.tensor{0, 2}, {2, 3})
    refused("indices are float32", dm.ones(2), {2, 3})
    refused("size 1 of shape is %-2", dm.tensor{1}, {-2, 3})
  end)
end)

describe("broadcast_shapes", function()
  it("joins lists and numbers, and says what does not fit", function()
    assert.same({5, 2, 3}, {table.unpack(dm.broadcast_shapes({2, 1}, 3, {5, 1, 1}))})
    assert.refuses("broadcast_shapes: sizes 2 and 3 of dim 1 do not broadcast",
      function() dm.broadcast_shapes({2}, {3}) end)
  end)
end)

describe("16-bit numbers", function()
  it("are computed in float32 and rounded once", function()
    local x = dm.linspace(-0.9, 0.9, 31, {dtype = "float32"}):half()
    local want = dm.special.legendre_polynomial_p(x:double(), 5):half()
    assert.same(want:totable(), dm.special.legendre_polynomial_p(x, 5):totable())
    assert.equal("float16", dm.special.zeta(x + 3, 2).dtype)
  end)
end)

describe("dm.help", function()
  local told
  local function help(name)
    told = {}
    local env_print = print
    _G.print = function(text) told[#told + 1] = text end
    dm.help(name)
    _G.print = env_print
    return table.concat(told, "\n")
  end

  it("tells of ops written in Lua, and of other names", function()
    assert.matches("^cov%(x, fweights, aweights, {correction = 1}%)\n  covariances", help "cov")
    assert.matches("^x:new_full%(size, fill_value, {", help "new_full")
    assert.matches("^special_zeta%(x, other%)", help "special.zeta")
    assert.matches("^abs%(x%)", help "absolute")
    assert.matches("did you mean 'igamma'", help "igama")
  end)
end)
