-- Sample calls for every op: small float64 inputs away from kinks, so that
-- finite differences can judge the gradients. spec/op_spec.lua fails by name
-- on an op of dm.ops() that has none.
--
-- samples.NAME = list of calls; a call is the argument list, where x(...) makes a
-- tensor literal of spec/case.lua. Fields of a call:
--   grad = false    nothing to differentiate
--   once = true     no second-order check: a second derivative is not defined
--   dense = true    the meaning depends on the strides: contiguous only
--   random = true   results differ from call to call
--   plain = true    the result is no tensor
--   pointwise       filled in below: the op works on any shape

local samples = {}

-- A fixed sequence in (0, 1), spread like a golden-ratio lattice.
local turn = 0
local function fraction()
  turn = (turn + 0.6180339887498949) % 1
  return turn
end

local function literal(dtype, lo, hi, shape, grad)
  local n = 1
  for _, s in ipairs(shape) do n = n * s end
  local d = {}
  for i = 1, n do d[i] = lo + (hi - lo) * fraction() end
  return {t = dtype, s = shape, d = d, g = grad}
end

-- Differentiable, in (lo, hi).
local function x(lo, hi, ...) return literal("float64", lo, hi, {...}, true) end

-- Not differentiated: weights, targets, statistics.
local function const(lo, hi, ...) return literal("float64", lo, hi, {...}) end

-- Magnitudes in (0.2, hi), signs alternating: for kinks at 0.
local function off_zero(hi, ...)
  local v = x(0.2, hi, ...)
  for i = 1, #v.d, 2 do v.d[i] = -v.d[i] end
  return v
end

-- Elements at least 0.3 apart, shuffled: for ops that choose.
local function distinct(...)
  local v = x(0, 1, ...)
  local order = {}
  for i = 1, #v.d do order[i] = i end
  table.sort(order, function(a, b) return v.d[a] < v.d[b] end)
  for rank, i in ipairs(order) do v.d[i] = 0.3 * (rank - #order / 2) + 0.07 end
  return v
end

-- Between whole numbers.
local function off_integer(...)
  local v = x(0.2, 0.4, ...)
  for i = 1, #v.d do v.d[i] = v.d[i] + i % 5 - 2 end
  return v
end

local function int(dtype, shape, d) return {t = dtype, s = shape, d = d} end
local function bool(shape, d) return int("bool", shape, d) end
local mask = bool({2, 3}, {1, 0, 1, 0, 0, 1})

-- ---- functions of one tensor ----

local UNARY = {
  neg = {-2, 2}, exp = {-2, 2}, expm1 = {-2, 2}, log = {0.3, 3}, log1p = {-0.6, 2},
  log2 = {0.3, 3}, log10 = {0.3, 3}, sqrt = {0.3, 3}, rsqrt = {0.3, 3}, reciprocal = {0.4, 2},
  exp2 = {-2, 2}, erfc = {-2, 2}, deg2rad = {-90, 90}, rad2deg = {-2, 2},
  sin = {-2, 2}, cos = {-2, 2}, tan = {-1, 1}, tanh = {-2, 2}, sigmoid = {-3, 3}, erf = {-2, 2},
  gelu = {-3, 3}, silu = {-3, 3}, softplus = {-3, 3}, square = {-2, 2}, asin = {-0.8, 0.8},
  acos = {-0.8, 0.8}, atan = {-2, 2}, sinh = {-2, 2}, cosh = {-2, 2},
  erfinv = {-0.8, 0.8}, mish = {-3, 3}, logsigmoid = {-3, 3}, selu = {0.2, 2}, celu = {0.2, 2},
  sinc = {0.1, 2}, softsign = {0.2, 2}, tanhshrink = {-2, 2},
  lgamma = {0.2, 4}, digamma = {0.3, 4}, i0 = {-3, 3}, special_i0e = {0.2, 3},
  special_i1 = {-3, 3}, special_i1e = {0.2, 3}, special_erfcx = {-1, 2},
  special_ndtr = {-3, 3}, special_ndtri = {0.1, 0.9}, special_log_ndtr = {-3, 3},
  special_entr = {0.2, 3}, logit = {0.1, 0.9}, mvlgamma = {1.6, 3},
}
local unary = {}
for name in pairs(UNARY) do unary[#unary + 1] = name end
table.sort(unary) -- pairs has another order in each process, and the sequence would follow it
for _, name in ipairs(unary) do samples[name] = {{x(UNARY[name][1], UNARY[name][2], 2, 3)}} end
for _, name in ipairs{"abs", "sign", "relu", "leaky_relu", "elu", "hardtanh"} do
  samples[name] = {{off_zero(0.9, 2, 3)}, {off_zero(3.1, 2, 3)}}
end
for _, name in ipairs{"lgamma", "digamma", "special_i0e", "special_i1e"} do
  table.insert(samples[name], {off_integer(2, 3)})
end
samples.polygamma = {
  {x(0.7, 3, 2, 3), {n = 1}}, {x(0.7, 3, 3), {n = 2}}, {x(0.7, 3, 3), {n = 0}},
  {off_integer(3), {n = 1}},
}
table.insert(samples.logit, {x(0.3, 0.7, 2, 3), {eps = 0.1}})
for _, call in ipairs(samples.mvlgamma) do call[2] = {p = 3} end
for _, name in ipairs{"selu", "celu", "softsign"} do
  table.insert(samples[name], {off_zero(2, 2, 3)})
end
table.insert(samples.celu, {off_zero(2, 2, 3), {alpha = 0.7}})
for _, name in ipairs{"hardsigmoid", "hardswish"} do
  samples[name] = {{x(-2.5, 2.5, 2, 3)}, {x(3.2, 4, 3)}, {x(-4, -3.2, 3)}}
end
samples.relu6 = {{off_integer(2, 3)}, {x(6.2, 7, 3)}}
samples.softshrink = {{off_integer(2, 3)}, {off_integer(2, 3), {lambd = 1.45}}}
samples.hardshrink = {{off_integer(2, 3)}, {off_integer(2, 3), {lambd = 1.5}}}
samples.threshold = {{off_integer(2, 3), 0.5, 7}}
samples.nan_to_num = {{x(-2, 2, 2, 3)}, {x(-2, 2, 3), {nan = 1, posinf = 2, neginf = -2}}}
samples.prelu = {{off_zero(2, 2, 3), x(0.1, 0.5)}, {off_zero(2, 2, 3, 2), x(0.1, 0.5, 3)}}
samples.glu = {{x(-2, 2, 2, 4)}, {x(-2, 2, 4, 3), {dim = 1}}}
for _, name in ipairs{"floor", "ceil", "round", "trunc", "frac"} do
  samples[name] = {{off_integer(2, 3)}}
end
samples.clamp = {
  {off_integer(2, 3), {min = -1, max = 1}}, {off_integer(2, 3), {min = 0}},
  {off_integer(2, 3), {min = x(-0.9, -0.6, 3), max = x(0.5, 0.9, 2, 1)}},
}
table.insert(samples.gelu, {x(-3, 3, 2, 3), {approximate = "tanh"}})
table.insert(samples.softplus, {x(-1, 1, 2, 3), {beta = 2}})
table.insert(samples.leaky_relu, {off_zero(2, 2, 3), {negative_slope = 0.3}})
table.insert(samples.elu, {off_zero(2, 2, 3), {alpha = 0.5}})
table.insert(samples.hardtanh, {off_integer(2, 3), {min_val = -0.5, max_val = 1.5}})

for name, range in pairs{asinh = {-2, 2}, acosh = {1.3, 3}, atanh = {-0.8, 0.8},
  special_bessel_j0 = {-3, 3}, special_bessel_j1 = {-3, 3}, special_bessel_y0 = {0.4, 3},
  special_bessel_y1 = {0.4, 3}, special_modified_bessel_k0 = {0.4, 3},
  special_modified_bessel_k1 = {0.4, 3}, special_scaled_modified_bessel_k0 = {0.4, 3},
  special_scaled_modified_bessel_k1 = {0.4, 3}, special_airy_ai = {-4, 4},
  special_spherical_bessel_j0 = {0.3, 4}} do
  samples[name] = {{x(range[1], range[2], 2, 3)}}
  UNARY[name] = range -- which makes them pointwise below
end
for _, name in ipairs{"bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "airy_ai"} do
  table.insert(samples["special_" .. name], {x(8, 35, 2, 3)}) -- the further branches
end
table.insert(samples.special_airy_ai, {x(-14, -9.2, 2, 3)})

-- ---- functions of two and three ----

for _, name in ipairs{"add", "sub", "mul"} do
  samples[name] = {
    {x(-2, 2, 2, 3), x(-2, 2, 2, 3)}, {x(-2, 2, 2, 3), x(-2, 2, 3)}, {x(-2, 2, 2, 1), 1.5},
  }
end
samples.add_relu = { -- sums away from relu's corner
  {off_zero(2, 2, 3), x(-0.1, 0.1, 2, 3)}, {off_zero(2, 2, 3), x(-0.1, 0.1, 3)},
  {off_zero(2, 3), 0.1},
}
table.insert(samples.add, {x(-2, 2, 2, 3), x(-2, 2, 2, 1), {alpha = -0.5}})
table.insert(samples.sub, {x(-2, 2, 2, 3), x(-2, 2, 2, 1), {alpha = 2}})
samples.div = {{x(-2, 2, 2, 3), x(0.5, 2, 2, 3)}, {x(-2, 2, 2, 3), x(0.5, 2, 3)}, {x(1, 2, 2), 3}}
samples.pow = {
  {x(0.5, 2, 2, 3), x(-2, 2, 2, 3)}, {x(0.5, 2, 2, 3), x(-2, 2, 3)}, {x(0.5, 2, 3), 2.5},
  {x(-2, -0.5, 3), 3},
}
samples.atan2 = {{x(0.2, 2, 2, 3), x(-2, 2, 2, 3)}, {x(0.2, 2, 2, 3), x(-2, 2, 3)}}
samples.hypot = {{off_zero(2, 2, 3), x(0.3, 2, 2, 3)}, {off_zero(2, 2, 3), x(0.3, 2, 3)}}
samples.xlogy = {{x(-2, 2, 2, 3), x(0.3, 2, 2, 3)}, {x(-2, 2, 2, 3), x(0.3, 2, 3)}, {x(1, 2, 3), 2}}
samples.special_xlog1py = {
  {x(-2, 2, 2, 3), x(-0.5, 2, 2, 3)}, {x(-2, 2, 2, 3), x(-0.5, 2, 3)}, {x(1, 2, 3), 2},
}
samples.nextafter = {{x(-1, 1, 2, 3), x(-1, 1, 3)}}
samples.copysign = {{off_zero(2, 2, 3), off_zero(2, 3)}, {off_zero(2, 2, 3), -1.0}}
for _, name in ipairs{"logaddexp", "logaddexp2"} do
  samples[name] = {{x(-2, 2, 2, 3), x(-2, 2, 2, 3)}, {x(-2, 2, 2, 3), x(-2, 2, 3)}}
end
for _, name in ipairs{"fmod", "remainder"} do
  samples[name] = {{off_integer(2, 3), 1.0}, {x(2.1, 2.9, 2, 3), x(0.95, 1.05, 3)}}
end
for _, name in ipairs{"maximum", "minimum"} do
  local a = distinct(2, 3)
  local b = x(0.1, 0.2, 2, 3)
  for i = 1, #b.d do b.d[i] = a.d[i] + (i % 2 == 0 and b.d[i] or -b.d[i]) end
  samples[name] = {{a, b}, {off_zero(1, 2, 3), const(0, 0, 3)}}
end
samples.where = {{mask, x(-2, 2, 2, 3), x(-2, 2, 3)}}
samples.lerp = {
  {x(-2, 2, 2, 3), x(-2, 2, 2, 3), 0.3}, {x(-2, 2, 2, 3), x(-2, 2, 3), x(0, 1, 2, 1)},
}
samples.addcmul = {
  {x(-2, 2, 2, 3), x(-2, 2, 2, 3), x(-2, 2, 2, 3)},
  {x(-2, 2, 2, 3), x(-2, 2, 3), x(-2, 2, 2, 1), {value = -0.3}},
}
samples.addcdiv = {
  {x(-2, 2, 2, 3), x(-2, 2, 2, 3), x(0.5, 2, 2, 3)},
  {x(-2, 2, 2, 3), x(-2, 2, 3), x(0.5, 2, 2, 1), {value = -0.5}},
}
for _, name in ipairs{"eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or",
  "logical_xor"} do
  samples[name] = {{const(-1, 1, 2, 3), const(-1, 1, 3), grad = false}}
end
local whole, others = int("int64", {2, 3}, {5, -3, 0, 12, 7, -8}), int("int64", {3}, {6, 3, -1})
for _, name in ipairs{"bitwise_and", "bitwise_or", "bitwise_xor"} do
  samples[name] = {{whole, others, grad = false}, {whole, 5, grad = false}}
end
local few = int("int64", {3}, {2, 0, 5})
for _, name in ipairs{"bitwise_left_shift", "bitwise_right_shift"} do
  samples[name] = {{whole, few, grad = false}, {whole, 3, grad = false}}
end
for _, name in ipairs{"gcd", "lcm"} do
  samples[name] = {{whole, others, grad = false}, {whole, 6, grad = false}}
end
samples.bitwise_not = {{whole, grad = false}, {mask, grad = false}}
samples.isclose = {
  {const(-1, 1, 2, 3), const(-1, 1, 3), grad = false},
  {const(-1, 1, 2, 3), const(-1, 1, 3), {atol = 0.5, equal_nan = true}, grad = false},
}
for _, name in ipairs{"logical_not", "isnan", "isinf", "isfinite", "signbit"} do
  samples[name] = {{const(-1, 1, 2, 3), grad = false}}
end

local POINTWISE = {"clamp", "add", "add_relu", "sub", "mul", "div", "pow", "atan2", "fmod",
  "remainder", "maximum", "minimum", "where", "lerp", "addcmul", "addcdiv", "abs", "sign", "relu",
  "leaky_relu", "elu", "hardtanh", "floor", "ceil", "round", "trunc", "eq", "ne", "lt",
  "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "logical_not", "isnan",
  "isinf", "isfinite", "hardsigmoid", "hardswish", "relu6", "softshrink", "hardshrink",
  "threshold", "nan_to_num", "frac", "hypot", "xlogy", "copysign", "logaddexp", "logaddexp2",
  "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "bitwise_left_shift",
  "bitwise_right_shift", "gcd", "lcm", "isclose", "signbit",
  "special_xlog1py", "nextafter"}
table.move(unary, 1, #unary, #POINTWISE + 1, POINTWISE)
for _, name in ipairs(POINTWISE) do
  for _, call in ipairs(samples[name]) do call.pointwise = true end
end

-- ---- ops written in Lua ----

samples.sum_to_size = {{x(-2, 2, 2, 3), {1, 3}}, {x(-2, 2, 2, 3), 3}}
samples.as_strided_scatter = {{x(-2, 2, 3, 3), x(-2, 2, 2, 2), {2, 2}, {1, 3}, dense = true}}
samples.positive = {{x(-2, 2, 2, 3), pointwise = true}}
for _, name in ipairs{"isposinf", "isneginf"} do
  samples[name] = {{const(-1, 1, 2, 3), grad = false, pointwise = true}}
end
samples.frexp = {{x(0.6, 0.9, 2, 3), pointwise = true}, {x(5, 7, 3)}}
samples.fmax = {{distinct(2, 3), const(-0.9, -0.8, 2, 3), pointwise = true}}
samples.fmin = samples.fmax
samples.clamp_min = {{off_integer(2, 3), -1}, {off_integer(2, 3), x(-0.9, -0.6, 3),
  pointwise = true}}
samples.clamp_max = samples.clamp_min
samples.floor_divide = {{off_integer(2, 3), const(0.9, 1.1, 2, 3), grad = false, pointwise = true}}
samples.rsub = {{x(-2, 2, 2, 3), x(-2, 2, 3), {alpha = 2}}}
samples.float_power = {{x(0.5, 2, 2, 3), x(-2, 2, 2, 3), pointwise = true}, {x(0.5, 2, 3), 2}}
samples.rrelu = {{x(-2, 2, 2, 3)}, {x(-2, 2, 2, 3), {lower = 0.25, upper = 0.75}}}
samples.ldexp = {{x(-2, 2, 2, 3), x(-2, 2, 3)}}
samples.fill = {{x(-2, 2, 2, 3), 2.5}, {x(-2, 2, 2, 3), x(-2, 2)}}

for _, name in ipairs{"expand_as", "view_as", "reshape_as"} do
  samples["x:" .. name] = {{x(-2, 2, 2, 3), const(0, 1, 2, 3), dense = name == "view_as"}}
end
table.insert(samples["x:expand_as"], {x(-2, 2, 3), const(0, 1, 2, 3)})
samples.adjoint = {{x(-2, 2, 2, 3, 4)}}
samples.broadcast_to = {{x(-2, 2, 3), {2, 3}}, {x(-2, 2, 2, 1), 2, 3}}
samples.broadcast_shapes = {{{2, 1}, {3}, plain = true}}
samples.broadcast_tensors = {{{x(-2, 2, 3), x(-2, 2, 2, 1)}}}
for _, name in ipairs{"atleast_1d", "atleast_2d", "atleast_3d"} do
  samples[name] = {{x(-2, 2)}, {x(-2, 2, 3)}, {{x(-2, 2, 2, 3), x(-2, 2)}}}
end
samples["x:unfold"] = {{x(-2, 2, 2, 7), 2, 3, 2}, {x(-2, 2, 5), 1, 2, 1}, {x(-2, 2, 4, 2), 1, 2, 3}}
samples.split_with_sizes = {{x(-2, 2, 5, 2), {2, 3}}, {x(-2, 2, 2, 4), {1, 3}, 2}}
samples.cartesian_prod = {{x(-2, 2, 2), x(-2, 2, 3)}, {x(-2, 2, 3)}}
samples.combinations = {{x(-2, 2, 4)}, {x(-2, 2, 3), 2, true}, {x(-2, 2, 2), 3}}
samples.resize_ = {{const(-2, 2, 2, 3), 2, 2, random = true}}
samples.fill_diagonal_ = {{const(-2, 2, 4, 2), 0.5, true, random = true}}
samples.resize_as_ = {{const(-2, 2, 2, 3), const(0, 1, 4), random = true}}

for _, name in ipairs{"new_zeros", "new_ones"} do
  samples["x:" .. name] = {{const(0, 1, 2), 2, 3, grad = false}, {const(0, 1, 2), {3},
    grad = false}}
end
samples["x:new_empty"] = {{const(0, 1, 2), {2, 3}, random = true}}
samples["x:new_full"] = {{const(0, 1, 2), {2, 3}, 7, grad = false}}
samples["x:new_tensor"] = {{const(0, 1, 2), {{1, 2}, {3, 4}}, grad = false}}
samples.scalar_tensor = {{2.5, {dtype = "float64"}, grad = false}}
for _, name in ipairs{"is_floating_point", "is_complex"} do
  samples[name] = {{const(0, 1, 2), plain = true}}
end
samples.is_nonzero = {{const(1, 2, 1), plain = true}}
samples.can_cast = {{"int8", "float16", plain = true}}
samples.promote_types = samples.can_cast
samples.result_type = {{const(-1, 1, 2), 2, plain = true}}
samples.isreal = {{const(-1, 1, 2, 3), grad = false, pointwise = true}}
samples.unravel_index = {{int("int64", {3}, {1, 5, -1}), {2, 3}, plain = true}}
samples.finfo, samples.iinfo = {{"float16", plain = true}}, {{"int8", plain = true}}

samples.select_scatter = {{x(-2, 2, 2, 3), x(-2, 2, 3), 1, 2}, {x(-2, 2, 2, 3), x(-2, 2, 2), 2, -1}}
samples.slice_scatter = {
  {x(-2, 2, 5, 2), x(-2, 2, 2, 2), 1, 2, 3}, {x(-2, 2, 2, 5), x(-2, 2, 2, 3), 2, 1, 5, 2},
}
samples.diagonal_scatter = {{x(-2, 2, 3, 3), x(-2, 2, 3)}, {x(-2, 2, 3, 3), x(-2, 2, 2), 1}}
for i, reduce in ipairs{"prod", "mean", "amax", "amin"} do
  samples.index_reduce = samples.index_reduce or {}
  samples.index_reduce[i] = {distinct(3, 2), int("int64", {2}, {1, 3}), x(2, 3, 2, 2), 1, reduce}
end
samples.index_reduce[5] = {distinct(3, 2), int("int64", {2}, {1, 3}), x(2, 3, 2, 2), 1, "mean",
  {include_self = false}}
samples.put = {
  {x(-2, 2, 2, 3), int("int64", {2}, {1, 5}), x(-2, 2, 2)},
  {x(-2, 2, 2, 3), int("int64", {3}, {1, 5, 1}), x(-2, 2, 3), true},
}
samples.nonzero_static = {{mask, {size = 5}, grad = false}, {mask, 1, grad = false}}
samples.msort = {{distinct(4, 2)}}
samples.histogram = {
  {const(-1, 1, 12), 4, grad = false},
  {const(-1, 1, 12), const(-1, -0.9, 1), grad = false, plain = true},
  {const(-1, 1, 2, 3), 3, {range = {-1, 1}, density = true}, grad = false},
}
samples.histogramdd = {
  {const(-1, 1, 8, 2), {2, 3}, plain = true},
  {const(-1, 1, 8, 2), {2, 3}, {range = {-1, 1, -1, 1}, density = true}, plain = true},
}
for name, args in pairs{exponential_ = {2}, cauchy_ = {1, 2}, log_normal_ = {0, 1},
  geometric_ = {0.3}, random_ = {9}} do
  samples[name] = {{const(0, 1, 2, 3), args[1], args[2], random = true}}
end
samples.normal = {{const(0, 1, 2, 3), 1.5, random = true}, {0, 1, {2, 3}, random = true}}
samples.poisson = {{const(0, 30, 2, 3), random = true}}

samples.aminmax = {{distinct(2, 3)}, {distinct(2, 3), 2, {keepdim = true}}}
samples.cov = {
  {x(-2, 2, 3, 5)}, {x(-2, 2, 5), {correction = 0}},
  {x(-2, 2, 2, 4), {fweights = int("int64", {4}, {1, 2, 1, 3}), aweights = x(0.5, 1, 4)}},
}
samples.corrcoef = {{x(-2, 2, 3, 5), once = true}} -- its diagonal lies on the bound of a clamp
samples.gradient = {
  {x(-2, 2, 4, 5)}, {x(-2, 2, 4, 5), {spacing = 2, dim = 2, edge_order = 2}},
  {x(-2, 2, 4), {spacing = {int("float64", {4}, {0, 1, 3, 4})}, edge_order = 2}},
}
samples.cumulative_trapezoid = {
  {x(-2, 2, 2, 4)}, {x(-2, 2, 2, 4), {dx = 0.5, dim = 1}}, {x(-2, 2, 2, 3), x(0, 2, 3)},
}
for i, reduce in ipairs{"sum", "mean", "max", "min", "prod"} do
  samples.segment_reduce = samples.segment_reduce or {}
  samples.segment_reduce[i] = {distinct(5, 2), int("int64", {2}, {2, 3}), reduce}
end

samples.inner = {{x(-2, 2, 3), x(-2, 2, 3)}, {x(-2, 2, 2, 3), x(-2, 2, 4, 3)}}
local square = {t = "float64", s = {2, 2}, d = {2, 0.5, -0.7, 3}, g = true}
local positive = {t = "float64", s = {2, 2}, d = {2, 0.5, 0.5, 3}, g = true}
samples.lu, samples.linalg_lu_factor_ex = {{square}}, {{square}}
samples.linalg_solve_ex = {{square, x(-2, 2, 2, 3)}}
samples.lu_solve = {{x(-2, 2, 2, 1), {t = "float64", s = {2, 2}, d = {2, 0.5, 0.3, 3}, g = true},
  int("int32", {2}, {1, 2})}}
samples.lu_unpack = {{{t = "float64", s = {2, 2}, d = {2, 0.5, 0.3, 3}, g = true},
  int("int32", {2}, {2, 2})}}
samples.linalg_ldl_factor_ex = {{positive, grad = false}}
samples.linalg_ldl_factor = {{positive, grad = false}}
samples.linalg_ldl_solve = {{{t = "float64", s = {2, 2}, d = {2, 0, 0.25, 3}},
  int("int32", {2}, {1, 2}), const(-1, 1, 2, 3), grad = false}}
samples.triangular_solve = {{x(-2, 2, 2, 3), square}, {x(-2, 2, 2, 1), square, false, true}}
samples.geqrf = {{const(-2, 2, 3, 2), grad = false}}
samples.ormqr = {
  {x(-1, 1, 3, 2), x(0.5, 1, 2), x(-2, 2, 3, 2)},
  {x(-1, 1, 3, 2), x(0.5, 1, 2), x(-2, 2, 2, 3), false, true},
}
samples.svd = {{x(-2, 2, 2, 2), random = true}, {x(-2, 2, 3, 2), {compute_uv = false}}}
samples.linalg_polar = {{{t = "float64", s = {3, 2}, d = {2, 0.5, -0.7, 3, 1, 0.2}, g = true}}}
samples.linalg_matrix_sqrth = {{positive, grad = false}}
samples.svd_lowrank = {{x(-2, 2, 4, 3), {q = 2}, random = true}}
samples.pca_lowrank = {{x(-2, 2, 4, 3), {q = 2}, random = true}}

for _, kind in ipairs{"t", "u", "v", "w"} do
  local degrees = int("float64", {3}, {0, 1, 4})
  samples["special_chebyshev_polynomial_" .. kind] = {{x(-0.9, 0.9, 2, 3), degrees}}
  samples["special_shifted_chebyshev_polynomial_" .. kind] = {{x(0.1, 0.9, 2, 3), degrees}}
end
for _, name in ipairs{"hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l",
  "legendre_polynomial_p"} do
  samples["special_" .. name] = {{x(-0.9, 0.9, 2, 3), 3}, {x(-0.9, 0.9, 2), int("float64", {2}, {2,
    -1})}}
end
samples.special_zeta = {{x(1.5, 4, 2, 3), x(0.5, 3, 2, 3)}, {x(2, 4, 3), 1}}
samples.igamma = {
  {const(0.5, 4, 2, 3), x(0.2, 6, 2, 3), pointwise = true}, {const(20, 40, 3), x(15, 50, 3)},
}
samples.igammac = samples.igamma
for name, own in pairs{bartlett = {}, blackman = {}, cosine = {}, exponential = {tau = 2},
  gaussian = {std = 2}, general_cosine = {a = {0.5, 0.3, 0.2}}, general_hamming = {alpha = 0.6},
  hamming = {}, hann = {}, kaiser = {beta = 5}, nuttall = {}} do
  own.dtype = "float64"
  samples["signal_windows_" .. name] = {{6, own, grad = false}, {1, own, grad = false}}
end
samples.constant_pad_nd = {{x(-2, 2, 2, 3), {1, 2}, 1.5}}
samples.linear_cross_entropy = {
  {x(-2, 2, 3, 2), x(-2, 2, 4, 2), int("int64", {3}, {1, 4, 2}), {linear_bias = x(-1, 1, 4)}},
  {x(-2, 2, 3, 2), x(-2, 2, 4, 5, 2), int("int64", {3, 5}, {1, 4, 2, 3, 1, 2, 2, 3, 4, 4, 1, 1, 2,
    3, 1})},
}
samples.fractional_max_pool3d = {
  {distinct(1, 2, 3, 4, 3), const(0.1, 0.9, 1, 2, 3), 2, {output_size = {1, 2, 2}}},
}

-- ---- creation ----

local DOUBLE = {dtype = "float64"}
for _, name in ipairs{"zeros", "ones"} do samples[name] = {{2, 3, DOUBLE, grad = false}} end
for _, name in ipairs{"empty", "rand", "randn"} do
  samples[name] = {{2, 3, DOUBLE, grad = false, random = true}}
end
samples.full = {{{2, 3}, 1.5, DOUBLE, grad = false}}
samples.randint = {{1, 7, {2, 3}, grad = false, random = true}}
samples.randperm = {{7, grad = false, random = true}}
samples.standard_gamma = {{const(0.2, 3, 2, 3), grad = false, random = true}}
samples.bernoulli = {{const(0, 1, 3), grad = false, random = true}}
samples.multinomial = {{const(0.1, 1, 4), 2, grad = false, random = true}}
samples.arange = {{5, grad = false}, {1, 7, 2, grad = false}}
samples.linspace = {{0, 1, 5, grad = false}}
samples.eye = {{3, grad = false}, {2, 3, grad = false}}
for _, name in ipairs{"zeros_like", "ones_like"} do
  samples[name] = {{const(0, 1, 2, 3), grad = false}}
end
for _, name in ipairs{"empty_like", "rand_like", "randn_like"} do
  samples[name] = {{const(0, 1, 2, 3), grad = false, random = true}}
end
samples.full_like = {{const(0, 1, 2, 3), 1.5, grad = false}}
samples.randint_like = {{const(0, 1, 2, 3), 1, 7, grad = false, random = true}}
samples.tensor = {{{{1, 2}, {3, 4}}, grad = false}}

-- ---- views and shape ----

local function sample3d() return x(-2, 2, 2, 3, 4) end
samples.view = {{x(-2, 2, 6), 2, 3, dense = true}, {x(-2, 2, 6), -1, 2, dense = true}}
samples.reshape = {{sample3d(), {4, 6}}, {sample3d(), {-1}}}
samples.transpose = {{sample3d(), 1, 3}, {sample3d(), -1, -2}}
samples.t = {{x(-2, 2, 2, 3)}}
samples.permute = {{sample3d(), {3, 1, 2}}}
samples.squeeze = {{x(-2, 2, 2, 1, 3)}, {x(-2, 2, 2, 1, 3), 2}}
samples.unsqueeze = {{x(-2, 2, 2, 3), 1}, {x(-2, 2, 2, 3), -1}}
samples.expand = {{x(-2, 2, 3, 1), 2, 3, 4}}
samples.narrow = {{sample3d(), 2, 2, 2}}
samples.select = {{sample3d(), 2, -1}}
samples.flatten = {{sample3d()}, {sample3d(), {start_dim = 2}}}
samples.unflatten = {{x(-2, 2, 2, 6), 2, {2, 3}}}
samples.contiguous = {{sample3d()}}
samples.movedim = {{sample3d(), 1, 3}}
samples.cat = {{{x(-2, 2, 2, 3), x(-2, 2, 1, 3)}}, {{x(-2, 2, 2, 3), x(-2, 2, 2, 1)}, {dim = 2}}}
samples.stack = {{{x(-2, 2, 2, 3), x(-2, 2, 2, 3)}}, {{x(-2, 2, 2), x(-2, 2, 2)}, {dim = 2}}}
samples.split = {{x(-2, 2, 5, 2), 2}, {x(-2, 2, 2, 5), {2, 3}, {dim = 2}}}
samples.chunk = {{x(-2, 2, 5, 2), 2}}
for _, name in ipairs{"hstack", "vstack", "dstack", "column_stack"} do
  samples[name] = {{{x(-2, 2, 2, 3), x(-2, 2, 2, 3)}}, {{x(-2, 2, 3), x(-2, 2, 3)}}}
end
samples.block_diag = {{{x(-2, 2, 2, 3), x(-2, 2, 2), x(-2, 2)}}}
samples.tile = {{x(-2, 2, 2, 3), {2, 1}}}
samples.swapaxes = {{sample3d(), 1, 3}}
samples.swapdims = {{sample3d(), 1, 3}}
samples["repeat"] = {{x(-2, 2, 2, 3), 2, 1}}
samples.flip = {{sample3d(), {1, 3}}}
samples.roll = {{sample3d(), 1, 2}}
samples.repeat_interleave = {{x(-2, 2, 2, 3), 2, {dim = 2}}}
samples.clone = {{sample3d()}}
samples.detach = {{const(-2, 2, 2, 3), grad = false}}
samples.slice = {{sample3d(), 2, 1, 3, 2}}
samples.diagonal = {{x(-2, 2, 3, 4)}, {x(-2, 2, 3, 4), {offset = 1}}}
samples.as_strided = {
  {x(-2, 2, 6), {2, 2}, {3, 1}, dense = true},
  {x(-2, 2, 6), {3, 2}, {1, 2}, {storage_offset = 1}, dense = true},
}
samples.expand_as = {{x(-2, 2, 3, 1), const(0, 1, 3, 4)}}
samples.view_as = {{x(-2, 2, 6), const(0, 1, 2, 3), dense = true}}

-- ---- conversion and filling ----

samples.to = {{x(-2, 2, 2, 3), "float64"}}
samples.cast = {{x(-2, 2, 2, 3), "float64"}}
for _, name in ipairs{"float", "half", "bfloat16", "long", "int", "bool"} do
  samples[name] = {{const(-2, 2, 2, 3), grad = false}}
end
samples.double = {{x(-2, 2, 2, 3)}}
samples.copy_ = {{x(-2, 2, 2, 3), x(-2, 2, 2, 3)}, {x(-2, 2, 2, 3), x(-2, 2, 3)}}
samples.fill_ = {{x(-2, 2, 2, 3), 1.5}}
samples.zero_ = {{x(-2, 2, 2, 3)}}
for _, name in ipairs{"uniform", "normal", "bernoulli", "random"} do
  samples[name .. "_"] = {{const(0, 1, 2, 3), grad = false, random = true}}
end

-- ---- reductions ----

for _, name in ipairs{"sum", "mean", "var", "std", "norm", "logsumexp"} do
  samples[name] = {{sample3d(), 2}, {sample3d(), -1, {keepdim = true}}, {sample3d(), {1, 3}}}
  if name ~= "logsumexp" then table.insert(samples[name], {sample3d()}) end
end
samples.norm = {
  {sample3d()}, {sample3d(), {p = 3, dim = 2}}, {off_zero(2, 2, 3), {p = 1}},
  {distinct(2, 3), {p = math.huge, dim = 2}}, {sample3d(), {dim = {1, 3}, keepdim = true}},
}
table.insert(samples.var, {sample3d(), {correction = 0}})
table.insert(samples.std, {sample3d(), 2, {correction = 0}})
samples.prod = {{x(0.5, 2, 2, 3)}, {x(0.5, 2, 2, 3), 2}, {x(0.5, 2, 2, 3), 1, {keepdim = true}}}
for _, name in ipairs{"max", "min"} do
  samples[name] = {{distinct(2, 3)}, {distinct(2, 3), 2}, {distinct(2, 3), 1, {keepdim = true}}}
end
for _, name in ipairs{"amax", "amin"} do
  samples[name] = {{distinct(2, 3)}, {distinct(2, 3), 2}, {distinct(2, 3, 2), {1, 3}}}
end
for _, name in ipairs{"argmax", "argmin"} do
  samples[name] = {{distinct(2, 3), grad = false}, {distinct(2, 3), 2, grad = false}}
end
for _, name in ipairs{"any", "all"} do
  samples[name] = {{mask, grad = false}, {mask, 2, grad = false}}
end
samples.cumsum = {{sample3d(), 2}, {sample3d(), -1}}
local zeros = x(-2, 2, 2, 5)
zeros.d[2], zeros.d[7], zeros.d[9] = 0, 0, 0
samples.cumprod = {{sample3d(), 2}, {zeros, -1}}
samples.logcumsumexp = {{sample3d(), 1}, {sample3d(), -1}}
samples.var_mean = {{sample3d()}, {sample3d(), 2, {correction = 0, keepdim = true}}}
samples.std_mean = {{sample3d()}, {sample3d(), 2, {correction = 0, keepdim = true}}}
samples.nansum = {{sample3d()}, {sample3d(), {1, 3}, {keepdim = true}}}
samples.nanmean = {{sample3d()}, {sample3d(), {1, 3}, {keepdim = true}}}

-- ---- order and indexing ----

samples.sort = {{distinct(2, 4)}, {distinct(4, 2), {dim = 1, descending = true}}}
samples.argsort = {{distinct(2, 4), grad = false}}
samples.isin = {
  {int("int64", {2, 3}, {1, 5, 2, 7, 5, 3}), int("int64", {3}, {5, 3, 4}), grad = false},
  {int("int64", {3}, {1, 5, 2}), int("int64", {2, 2}, {5, 3, 4, 1}), {invert = true}, grad = false},
}
samples.topk = {{distinct(2, 4), 2}, {distinct(4, 2), 2, {dim = 1, largest = false}}}
samples.median = {{distinct(2, 4)}, {distinct(2, 4), 2}, {distinct(3, 2), 1, {keepdim = true}}}
samples.nanmedian = {{distinct(2, 4)}, {distinct(2, 4), 2, {keepdim = true}}}
samples.quantile = {
  {distinct(2, 4), 0.3}, {distinct(2, 4), const(0.1, 0.9, 3), {dim = 2}},
  {distinct(2, 5), 0.4, {dim = 1, keepdim = true, interpolation = "midpoint"}},
}
samples.nanquantile = {{distinct(2, 4), 0.3}, {distinct(2, 4), 0.8, {dim = 2}}}
samples.cummax = {{distinct(2, 5), 2}, {distinct(4, 2), 1}}
samples.cummin = {{distinct(2, 5), 2}, {distinct(4, 2), 1}}
samples.unique_consecutive = {
  {int("int64", {5}, {1, 1, 2, 1, 1}), {return_inverse = true, return_counts = true}, grad = false},
}
samples.kthvalue = {{distinct(2, 4), 3}, {distinct(4, 2), 2, {dim = 1, keepdim = true}}}
samples.mode = {{distinct(2, 4)}, {distinct(4, 2), {dim = 1, keepdim = true}}}
samples.unique = {
  {distinct(2, 3)}, {distinct(4), {return_inverse = true, return_counts = true}},
  {distinct(3, 2), {dim = 1}},
}
samples.bincount = {
  {int("int64", {4}, {1, 3, 2, 3}), grad = false},
  {int("int64", {4}, {1, 3, 2, 3}), {weights = x(-2, 2, 4), minlength = 5}},
}
samples.histc = {{const(-2, 2, 2, 3), {bins = 4}, grad = false}}
samples.searchsorted = {
  {int("float64", {3}, {-1, 0.25, 1}), const(-2, 2, 2, 3), grad = false},
  {int("float64", {2, 3}, {-1, 0.25, 1, 0, 1, 1}), const(-2, 2, 2, 4), {side = "right"},
    grad = false},
}
samples.nonzero = {{mask, grad = false}}
local edges = int("float64", {3}, {-1, 0.25, 1})
samples.bucketize = {
  {const(-2, 2, 2, 3), edges, grad = false},
  {const(-2, 2, 2, 3), edges, {right = true}, grad = false},
}
local pick = int("int64", {2, 3}, {1, 4, 2, 3, 3, 1})
local spread = int("int64", {2, 3}, {1, 4, 2, 3, 2, 1})
samples.gather = {{x(-2, 2, 2, 4), 2, pick}}
samples.scatter = {{x(-2, 2, 2, 4), 2, spread, x(-2, 2, 2, 3)}, {x(-2, 2, 2, 4), 2, spread, 1.5}}
samples.scatter_add = {{x(-2, 2, 2, 4), 2, pick, x(-2, 2, 2, 3)}}
for i, reduce in ipairs{"sum", "prod", "mean", "amax", "amin"} do
  samples.scatter_reduce = samples.scatter_reduce or {}
  samples.scatter_reduce[2 * i - 1] = {distinct(2, 4), 2, pick, off_zero(2, 2, 3), reduce}
  samples.scatter_reduce[2 * i] =
    {distinct(2, 4), 2, pick, off_zero(2, 2, 4), reduce, {include_self = false}}
end
samples.index_select = {{x(-2, 2, 4, 2), 1, int("int64", {3}, {4, 1, 4})}}
samples.index_copy = {{x(-2, 2, 4, 2), 1, int("int64", {2}, {4, 1}), x(-2, 2, 2, 2)}}
samples.index_fill = {
  {x(-2, 2, 4, 2), 1, int("int64", {2}, {4, 1}), 1.5},
  {x(-2, 2, 2, 3), 2, int("int64", {1}, {2}), -1},
}
samples.take = {{x(-2, 2, 2, 3), int("int64", {2, 2}, {1, 6, 6, 3})}}
samples.tril = {{x(-2, 2, 4, 3)}, {x(-2, 2, 4, 3), -1}}
samples.triu = {{x(-2, 2, 4, 3)}, {x(-2, 2, 4, 3), 1}}
samples.diag = {{x(-2, 2, 3)}, {x(-2, 2, 3), -1}, {x(-2, 2, 3, 4), 1}}
samples.diagflat = {{x(-2, 2, 2, 2)}, {x(-2, 2, 3), 1}}
samples.diag_embed = {{x(-2, 2, 2, 3)}, {x(-2, 2, 2, 3), {offset = 1, dim1 = 1, dim2 = 3}}}
samples.fliplr, samples.flipud = {{x(-2, 2, 2, 3)}}, {{x(-2, 2, 3)}}
samples.rot90 = {{x(-2, 2, 2, 3)}, {x(-2, 2, 2, 3, 2), 3, {dims = {2, 3}}}, {x(-2, 2, 2, 3), -2}}
samples.take_along_dim = {{x(-2, 2, 2, 4), pick, 2}, {x(-2, 2, 2, 4), int("int64", {2}, {8, 3})}}
samples.masked_scatter = {{x(-2, 2, 2, 3), mask, x(-2, 2, 4)}}
samples.index_add = {{x(-2, 2, 4, 2), 1, int("int64", {3}, {4, 1, 4}), x(-2, 2, 3, 2)}}
samples.masked_fill = {{x(-2, 2, 2, 3), mask, 1.5}, {x(-2, 2, 2, 3), mask, x(-1, 1)}}
samples.masked_select = {{x(-2, 2, 2, 3), mask}}
samples.embedding = {{int("int64", {2, 2}, {1, 3, 3, 2}), x(-2, 2, 4, 3)}}
samples.one_hot = {{int("int64", {3}, {1, 3, 2}), {num_classes = 4}, grad = false}}

-- ---- softmax and products ----

for _, name in ipairs{"softmax", "log_softmax", "softmin"} do
  samples[name] = {{x(-2, 2, 2, 4), -1}, {x(-2, 2, 2, 4, 3), 2}}
end
samples.gumbel_softmax = {
  {const(-2, 2, 2, 4), grad = false, random = true},
  {const(-2, 2, 2, 4), {tau = 0.5, hard = true, dim = 1}, grad = false, random = true},
}
samples.matmul = {
  {x(-1, 1, 2, 3), x(-1, 1, 3, 2)}, {x(-1, 1, 3), x(-1, 1, 3)}, {x(-1, 1, 3), x(-1, 1, 3, 2)},
  {x(-1, 1, 2, 2, 3), x(-1, 1, 3)}, {x(-1, 1, 2, 1, 2, 3), x(-1, 1, 2, 3, 2)},
}
samples.mm = {{x(-1, 1, 2, 3), x(-1, 1, 3, 2)}}
samples.bmm = {{x(-1, 1, 2, 2, 3), x(-1, 1, 2, 3, 2)}}
samples.mv = {{x(-1, 1, 2, 3), x(-1, 1, 3)}}
samples.dot = {{x(-1, 1, 4), x(-1, 1, 4)}}
samples.trace = {{x(-1, 1, 3, 4)}}
samples.cosine_similarity = {
  {x(0.2, 1, 2, 3), x(-1, 1, 2, 3)}, {x(0.2, 1, 2, 3, 2), x(-1, 1, 3, 2), {dim = -1}},
}
samples.pairwise_distance = {
  {x(-1, 0, 2, 3), x(0.1, 1, 2, 3)},
  {x(-1, 0, 2, 3), x(0.1, 1, 3), {p = 1, keepdim = true}},
}
samples.cdist = {
  {x(-1, 0, 2, 3), x(0.1, 1, 4, 3)}, {x(-1, 0, 2, 3, 2), x(0.1, 1, 2, 2), {p = 3}},
  {x(-1, 0, 26, 2), x(0.1, 1, 2, 2)},
}
samples.outer = {{x(-1, 1, 2), x(-1, 1, 3)}}
samples.pdist = {
  {x(-1, 1, 4, 3)}, {x(-1, 1, 3, 2), {p = 3}}, {x(-1, 1, 3, 2), {p = 1.5}},
}
samples.dist = {{x(-1, 1, 2, 3), x(-1, 1, 2, 3)}, {x(-1, 1, 2, 3), x(-1, 1, 3), {p = 3}}}
samples.renorm = {{x(0.2, 1, 3, 4), 2, 1, 1}, {x(0.2, 1, 2, 3, 2), 3, 2, 0.5}}
samples.vdot = {{x(-1, 1, 4), x(-1, 1, 4)}}
samples.addmv = {
  {x(-1, 1, 2), x(-1, 1, 2, 3), x(-1, 1, 3)},
  {x(-1, 1), x(-1, 1, 2, 3), x(-1, 1, 3), {beta = 0.5, alpha = 2}},
}
samples.addr = {
  {x(-1, 1, 2, 3), x(-1, 1, 2), x(-1, 1, 3)},
  {x(-1, 1, 3), x(-1, 1, 2), x(-1, 1, 3), {beta = 0.5, alpha = 2}},
}
samples.addbmm = {
  {x(-1, 1, 2, 4), x(-1, 1, 3, 2, 5), x(-1, 1, 3, 5, 4)},
  {x(-1, 1, 4), x(-1, 1, 3, 2, 5), x(-1, 1, 3, 5, 4), {beta = 0.5, alpha = 2}},
}
samples.addmm = {
  {x(-1, 1, 2, 2), x(-1, 1, 2, 3), x(-1, 1, 3, 2)},
  {x(-1, 1, 2), x(-1, 1, 2, 3), x(-1, 1, 3, 2), {beta = 0.5, alpha = 2}},
}
samples.baddbmm = {
  {x(-1, 1, 2, 2, 2), x(-1, 1, 2, 2, 3), x(-1, 1, 2, 3, 2), {beta = 0.5, alpha = 2}},
}
samples.linear = {
  {x(-1, 1, 2, 3), x(-1, 1, 4, 3), x(-1, 1, 4)}, {x(-1, 1, 2, 2, 3), x(-1, 1, 4, 3)},
  {x(-1, 1, 2, 3), x(-1, 1, 8, 3), x(-1, 1, 8), {activation = "relu"}},
  {x(-1, 1, 2, 2, 3), x(-1, 1, 4, 3), {activation = "gelu"}},
  {x(-1, 1, 2, 3), x(-1, 1, 8, 3), x(-1, 1, 8), {activation = "gelu_tanh"}},
}
samples.einsum = {
  {"bij,bjk->bik", x(-1, 1, 2, 2, 3), x(-1, 1, 2, 3, 2)}, {"ij,j->i", x(-1, 1, 2, 3), x(-1, 1, 3)},
}

-- ---- layers ----

samples.conv2d = {
  {x(-1, 1, 1, 2, 4, 4), x(-1, 1, 2, 2, 3, 3), x(-1, 1, 2), {padding = 1}},
  {x(-1, 1, 1, 2, 5, 4), x(-1, 1, 2, 1, 2, 2), {stride = {2, 1}, dilation = {1, 2}, groups = 2}},
}
samples.max_pool2d = {
  {distinct(1, 1, 4, 4), 2}, {distinct(1, 1, 4, 5), 3, {stride = 1, padding = 1}},
}
samples.avg_pool2d = {
  {x(-1, 1, 1, 2, 4, 4), 2},
  {x(-1, 1, 1, 1, 5, 4), 3, {stride = 2, padding = 1, count_include_pad = false}},
}
samples.adaptive_avg_pool2d = {{x(-1, 1, 1, 2, 5, 4), {2, 3}}}
samples.conv1d = {{x(-1, 1, 1, 2, 5), x(-1, 1, 2, 2, 3), x(-1, 1, 2), {padding = 1}}}
samples.conv3d = {
  {x(-1, 1, 1, 2, 3, 3, 2), x(-1, 1, 2, 1, 2, 2, 2), {padding = 1, groups = 2, stride = {2, 1, 1}}},
  {x(-1, 1, 1, 2, 3, 2, 2), x(-1, 1, 2, 2, 2, 2, 1)},
}
samples.conv_transpose1d = {{x(-1, 1, 1, 2, 3), x(-1, 1, 2, 2, 3), x(-1, 1, 2), {stride = 2}}}
samples.conv_transpose2d = {
  {x(-1, 1, 1, 2, 2, 3), x(-1, 1, 2, 1, 2, 2), {stride = 2, output_padding = 1, groups = 2}},
}
samples.conv_transpose3d = {
  {x(-1, 1, 1, 2, 2, 2, 2), x(-1, 1, 2, 1, 2, 1, 2), x(-1, 1, 2),
    {stride = 2, padding = {1, 0, 0}, output_padding = 1, groups = 2}},
}
samples.max_unpool1d = {{x(-1, 1, 1, 3), int("int64", {1, 3}, {2, 3, 6}), 2}}
samples.max_unpool2d = {
  {x(-1, 1, 1, 2, 2), int("int64", {1, 2, 2}, {1, 8, 15, 10}), 2, {output_size = {4, 4}}},
}
samples.max_unpool3d = {{x(-1, 1, 1, 1, 1, 2), int("int64", {1, 1, 1, 2}, {3, 14}), 2}}
samples.max_pool1d = {{distinct(1, 2, 5), 2}}
samples.max_pool3d = {{distinct(1, 1, 3, 3, 4), 2, {stride = 1, padding = 1}}}
samples.avg_pool1d = {{x(-1, 1, 1, 2, 5), 2}}
samples.avg_pool3d = {{x(-1, 1, 1, 1, 3, 3, 4), 2, {padding = 1, count_include_pad = false}}}
samples.adaptive_avg_pool1d = {{x(-1, 1, 1, 2, 5), 3}}
samples.adaptive_avg_pool3d = {{x(-1, 1, 1, 1, 3, 4, 3), 2}}
samples.adaptive_max_pool1d = {{distinct(1, 2, 5), 3}}
samples.adaptive_max_pool2d = {{distinct(1, 1, 5, 4), {2, 3}}}
samples.adaptive_max_pool3d = {{distinct(1, 1, 3, 4, 2), {2, 3, 1}}}
samples.pad = {
  {x(-1, 1, 2, 3), {1, 2}}, {x(-1, 1, 2, 3), {1, -1, 0, 1}, {value = 2}},
  {x(-1, 1, 2, 4), {2, 1}, {mode = "reflect"}}, {x(-1, 1, 2, 3), {1, 2}, {mode = "circular"}},
  {x(-1, 1, 2, 3, 4), {3, 1, 1, 2}, {mode = "reflect"}},
  {x(-1, 1, 2, 1, 2, 2), {2, 1, 0, 0, 1, 2}, {mode = "replicate"}},
  {x(-1, 1, 2, 3, 4), {-1, 2, 2, -1}, {mode = "circular"}},
}
samples.unfold = {{x(-1, 1, 1, 2, 3, 4), {2, 3}, {padding = 1, stride = 2}}}
samples.fold = {{x(-1, 1, 1, 8, 6), {3, 4}, 2}}
samples.pixel_shuffle = {{x(-1, 1, 1, 8, 2, 3), 2}}
samples.pixel_unshuffle = {{x(-1, 1, 1, 2, 4, 2), 2}}
samples.interpolate = {
  {x(-1, 1, 1, 1, 3, 4), {size = {5, 3}, mode = "bilinear"}},
  {x(-1, 1, 1, 1, 3, 4), {size = {5, 6}, mode = "bicubic"}},
  {x(-1, 1, 1, 2, 4), {scale_factor = 1.5}},
  {x(-1, 1, 1, 2, 5), {size = 8, mode = "linear", align_corners = true}},
  {x(-1, 1, 1, 1, 2, 3, 2), {size = {3, 2, 5}, mode = "trilinear"}},
}
-- Points in -1..1 whose positions on axes of 3, 4 and 2 elements are no whole or half numbers.
local function points(...)
  local shape, d = {...}, {0.31, -0.42, 0.83, 0.12, -0.77, 1.37, -1.29, 0.58}
  local v = x(0, 1, ...)
  for i = 1, #v.d do v.d[i] = d[(i - 1) % #d + 1] + 0.013 * (i // shape[#shape]) end
  return v
end
samples.grid_sample = {{x(-1, 1, 1, 2, 3, 4, 2), points(1, 1, 2, 2, 3)}}
for _, mode in ipairs{"bilinear", "nearest", "bicubic"} do
  for _, padding in ipairs{"zeros", "border", "reflection"} do
    local grid = points(1, 2, 2, 2)
    grid.g = mode ~= "nearest" -- which has no gradient in the grid
    table.insert(samples.grid_sample, {x(-1, 1, 1, 2, 3, 4), grid,
      {mode = mode, padding_mode = padding, align_corners = padding ~= "border"}})
  end
end
samples.affine_grid = {
  {x(-1, 1, 2, 2, 3), {2, 1, 2, 3}}, {x(-1, 1, 1, 3, 4), {1, 1, 2, 1, 3}, {align_corners = true}},
}
samples.fractional_max_pool2d = {
  {distinct(1, 2, 4, 5), const(0, 0.9, 1, 2, 2), 2, {2, 3}},
  {distinct(2, 4, 5), const(0, 0.9, 1, 2, 2), {1, 2}, {3, 2}, {return_indices = true}},
}
samples.batch_norm = {
  {x(-1, 1, 4, 2), const(-1, 1, 2), const(0.5, 1, 2),
    {weight = x(0.5, 1, 2), bias = x(-1, 1, 2), training = true}},
  {x(-1, 1, 2, 2, 3), const(-1, 1, 2), const(0.5, 1, 2), {weight = x(0.5, 1, 2)}},
}
samples.layer_norm = {
  {x(-1, 1, 3, 4), {4}, {weight = x(0.5, 1, 4), bias = x(-1, 1, 4)}}, {x(-1, 1, 2, 2, 3), {2, 3}},
}
samples.add_layer_norm = {
  {x(-1, 1, 3, 4), x(-1, 1, 3, 4), {4}, {weight = x(0.5, 1, 4), bias = x(-1, 1, 4)}},
  {x(-1, 1, 2, 2, 3), x(-1, 1, 2, 3), {2, 3}},
}
samples.group_norm = {{x(-1, 1, 2, 4, 3), 2, {weight = x(0.5, 1, 4), bias = x(-1, 1, 4)}}}
samples.dropout = {{x(-1, 1, 2, 3), {p = 0}}, {x(-1, 1, 2, 3), {p = 0.5, training = false}}}
samples.instance_norm = {
  {x(-1, 1, 2, 2, 3), const(-1, 1, 2), const(0.5, 1, 2),
    {weight = x(0.5, 1, 2), bias = x(-1, 1, 2)}},
  {x(-1, 1, 2, 2, 3), const(-1, 1, 2), const(0.5, 1, 2), {use_input_stats = false}},
}
samples.rms_norm = {
  {x(-1, 1, 3, 4), {4}, {weight = x(0.5, 1, 4)}}, {x(-1, 1, 2, 2, 3), {2, 3}, {eps = 0.1}},
}
samples.local_response_norm = {
  {x(-1, 1, 2, 3, 2), 2, {alpha = 0.5}}, {x(-1, 1, 1, 4, 2, 2), 3, {alpha = 0.5, k = 2}},
}
samples.bilinear = {
  {x(-1, 1, 2, 3), x(-1, 1, 2, 4), x(-1, 1, 2, 3, 4), x(-1, 1, 2)},
  {x(-1, 1, 2, 2, 3), x(-1, 1, 2, 2, 2), x(-1, 1, 4, 3, 2)},
}
samples.channel_shuffle = {{x(-1, 1, 2, 4, 3), 2}}
for _, drop in ipairs{{"dropout1d", 2, 3, 2}, {"dropout2d", 2, 3, 2, 2},
  {"dropout3d", 1, 2, 2, 1, 2}, {"alpha_dropout", 2, 3}, {"feature_alpha_dropout", 2, 3, 2}} do
  local function t() return x(-1, 1, table.unpack(drop, 2)) end
  samples[drop[1]] = {{t(), {p = 0, training = true}}, {t(), {p = 0.5, training = false}}}
end

-- ---- attention: 3 queries, 4 keys ----

local seen = bool({3, 4}, {1, 0, 1, 1, 0, 0, 0, 0, 0, 1, 1, 0}) -- the second sees none
samples.scaled_dot_product_attention = {
  {x(-1, 1, 3, 2), x(-1, 1, 4, 2), x(-1, 1, 4, 3)},
  {x(-1, 1, 2, 1, 3, 2), x(-1, 1, 2, 2, 4, 2), x(-1, 1, 1, 2, 4, 2), {is_causal = true}},
  {x(-1, 1, 2, 3, 2), x(-1, 1, 2, 4, 2), x(-1, 1, 2, 4, 2), {attn_mask = seen, scale = 0.5}},
  {x(-1, 1, 1, 4, 3, 2), x(-1, 1, 1, 2, 4, 2), x(-1, 1, 1, 2, 4, 2),
    {attn_mask = x(-1, 1, 4, 1, 4), enable_gqa = true}},
}

-- ---- recurrent networks: 2 rows of 3 features, 2 hidden ----

for _, name in ipairs{"rnn_tanh_cell", "rnn_relu_cell", "gru_cell"} do
  local rows = name == "gru_cell" and 6 or 2
  samples[name] = {
    {x(-1, 1, 2, 3), x(-1, 1, 2, 2), x(-1, 1, rows, 3), x(-1, 1, rows, 2),
      {b_ih = x(-1, 1, rows), b_hh = x(-1, 1, rows)}},
    {x(-1, 1, 3), x(-1, 1, 2), x(-1, 1, rows, 3), x(-1, 1, rows, 2)},
  }
end
samples.lstm_cell = {
  {x(-1, 1, 2, 3), x(-1, 1, 2, 2), x(-1, 1, 2, 2), x(-1, 1, 8, 3), x(-1, 1, 8, 2),
    {b_ih = x(-1, 1, 8), b_hh = x(-1, 1, 8)}},
  {x(-1, 1, 3), x(-1, 1, 2), x(-1, 1, 2), x(-1, 1, 8, 3), x(-1, 1, 8, 2)},
}
samples.rnn_layer = {
  {x(-1, 1, 3, 2, 3), x(-1, 1, 2, 3), x(-1, 1, 2, 2), "tanh", {reverse = true}},
  {x(-1, 1, 2, 1, 3), x(-1, 1, 2, 3), x(-1, 1, 2, 2), "relu", {b_ih = x(1, 2, 2)}},
  {x(-1, 1, 3, 2, 3), x(-1, 1, 8, 3), x(-1, 1, 8, 2), "lstm",
    {b_ih = x(-1, 1, 8), b_hh = x(-1, 1, 8), hx = x(-1, 1, 2, 2), cx = x(-1, 1, 2, 2)}},
  {x(-1, 1, 2, 1, 3), x(-1, 1, 6, 3), x(-1, 1, 6, 2), "gru",
    {b_hh = x(-1, 1, 6), hx = x(-1, 1, 1, 2), reverse = true}},
}

-- ---- losses ----

local labels = int("int64", {3}, {2, 1, 4})
local weight = const(0.5, 1.5, 4)
samples.cross_entropy = {
  {x(-1, 1, 3, 4), labels}, {x(-1, 1, 3, 4), labels, {reduction = "none", weight = weight}},
  {x(-1, 1, 3, 4), labels, {label_smoothing = 0.1, weight = weight}},
  {x(-1, 1, 3, 4), labels, {ignore_index = 2}},
}
samples.nll_loss = {
  {x(-1, 1, 3, 4), labels}, {x(-1, 1, 3, 4), labels, {reduction = "sum", weight = weight}},
}
for _, name in ipairs{"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"} do
  local a = off_integer(2, 3)
  local b = const(0, 0, 2, 3)
  samples[name] = {{a, b}, {a, b, {reduction = "none"}}, {a, b, {reduction = "sum"}}}
end
samples.binary_cross_entropy = {{x(0.2, 0.8, 2, 3), const(0, 1, 2, 3)}}
samples.binary_cross_entropy_with_logits = {
  {x(-2, 2, 2, 3), const(0, 1, 2, 3)},
  {x(-2, 2, 2, 3), const(0, 1, 2, 3),
    {weight = const(0.5, 1, 3), pos_weight = const(0.5, 2, 3), reduction = "sum"}},
}

-- Targets that are numbers of every row; labels of 1 and -1.
local function signs(...)
  local v = const(0, 1, ...)
  for i = 1, #v.d do v.d[i] = i % 3 == 0 and 1 or -1 end
  return v
end
local function probabilities(rows, classes, logarithms)
  local v = const(0.5, 1, rows, classes)
  for i = 1, #v.d, classes do
    local sum = 0
    for k = i, i + classes - 1 do sum = sum + v.d[k] end
    for k = i, i + classes - 1 do
      v.d[k] = v.d[k] / sum
      if logarithms then v.d[k] = math.log(v.d[k]) end
    end
  end
  return v
end
for _, how in ipairs{{}, {label_smoothing = 0.1, weight = weight}, {reduction = "none"}} do
  table.insert(samples.cross_entropy, {x(-1, 1, 3, 4), probabilities(3, 4), how})
end
samples.kl_div = {
  {x(-2, -1, 3, 4), probabilities(3, 4)}, {x(-2, -1, 3, 4), x(0.1, 0.9, 3, 4), {reduction = "sum"}},
  {x(-2, -1, 3, 4), x(-2, -1, 3, 4), {log_target = true, reduction = "batchmean"}},
}
samples.poisson_nll_loss = {
  {x(-1, 1, 2, 3), const(0, 4, 2, 3)}, {x(-1, 1, 2, 3), const(1.5, 4, 2, 3), {full = true}},
  {x(0.5, 1, 2, 3), const(0, 4, 2, 3), {log_input = false, reduction = "none"}},
}
samples.gaussian_nll_loss = {
  {x(-1, 1, 2, 3), x(-1, 1, 2, 3), x(0.5, 1, 2, 3)},
  {x(-1, 1, 2, 3), x(-1, 1, 2, 3), x(0.5, 1, 2), {full = true, reduction = "sum"}},
  {x(-1, 1, 2, 3), x(-1, 1, 2, 3), 0.5, {reduction = "none"}},
}
samples.soft_margin_loss = {{x(-2, 2, 2, 3), signs(2, 3)}}
samples.multilabel_soft_margin_loss = {
  {x(-2, 2, 2, 3), const(0, 1, 2, 3)},
  {x(-2, 2, 2, 3), const(0, 1, 2, 3), {weight = const(0.5, 1, 3), reduction = "none"}},
}
samples.multi_margin_loss = {
  {distinct(3, 4), labels}, {distinct(4), int("int64", {}, {2}), {reduction = "none"}},
  {distinct(3, 4), labels, {p = 2, margin = 0.5, weight = weight, reduction = "sum"}},
}
samples.multilabel_margin_loss = {
  {distinct(2, 4), int("int64", {2, 4}, {3, 1, -1, 2, 4, -1, 1, 1})},
  {distinct(4), int("int64", {4}, {3, 1, 2, -1}), {reduction = "none"}},
}
samples.hinge_embedding_loss = {{off_integer(2, 3), signs(2, 3)}}
samples.margin_ranking_loss = {
  {off_integer(2, 3), const(0, 0, 2, 3), signs(2, 3)},
  {off_integer(2, 3), const(0, 0, 2, 3), signs(2, 3), {margin = 1, reduction = "sum"}},
}
samples.cosine_embedding_loss = {
  {x(0.2, 1, 3, 2), x(0.2, 1, 3, 2), signs(3), {reduction = "none"}},
  {x(0.2, 1, 3), x(0.2, 1, 3), int("int64", {}, {-1}), {margin = 0.2}},
}
samples.triplet_margin_loss = {
  {x(-1, 0, 2, 3), x(0.1, 0.5, 2, 3), x(0.6, 1, 2, 3)},
  {x(-1, 0, 2, 3), x(0.1, 0.5, 2, 3), x(0.6, 1, 2, 3),
    {margin = 2, p = 3, swap = true, reduction = "none"}},
}
-- Five times, two sequences, four classes; the last label repeats the one before.
local padded = int("int64", {2, 3}, {2, 3, 3, 4, 2, 1})
local in_a_row = int("int64", {4}, {2, 3, 3, 4})
samples.ctc_loss = {
  {x(-2, -0.5, 5, 2, 4), padded, int("int64", {2}, {5, 4}), int("int64", {2}, {3, 2})},
  {x(-2, -0.5, 5, 2, 4), in_a_row, int("int64", {2}, {5, 3}), int("int64", {2}, {3, 1}),
    {blank = 1, reduction = "none"}},
  {x(-2, -0.5, 4, 4), int("int64", {2}, {2, 1}), int("int64", {}, {4}), int("int64", {}, {2}),
    {blank = 3, reduction = "sum"}},
}

samples.tensordot = {
  {x(-2, 2, 2, 3, 4), x(-2, 2, 3, 4, 2)}, {x(-2, 2, 2), x(-2, 2, 3), {dims = 0}},
  {x(-2, 2, 2, 3, 4), x(-2, 2, 4, 2), {dims_self = {1, 3}, dims_other = {2, 1}}},
}

-- ---- linear algebra ----

-- Matrices with a heavy diagonal whose elements differ: far from singular, and from equal
-- singular values. `rolled`: with rows moved on, so that LU exchanges them.
local function steady(...)
  local v, shape = x(-1, 1, ...), {...}
  local m, n = shape[#shape - 1], shape[#shape]
  for i = 1, #v.d do
    local row, column = (i - 1) // n % m, (i - 1) % n
    if row == column then v.d[i] = v.d[i] + 2 + 1.5 * row end
  end
  return v
end
local function rolled(n)
  local v = steady(n, n)
  for _ = 1, n do table.insert(v.d, table.remove(v.d, 1)) end
  return v
end
local function triangle(upper, n)
  local v = steady(n, n)
  for i = 1, n * n do
    local row, column = (i - 1) // n, (i - 1) % n
    if upper and row > column or not upper and row < column then v.d[i] = 0 end
  end
  return v
end
local flat = x(0, 0, 2, 2)
flat.d = {1, 2, 2, 4} -- of rank 1
for _, name in ipairs{"linalg_inv", "linalg_det", "linalg_slogdet", "linalg_lu_factor"} do
  samples[name] = {{steady(3, 3)}, {steady(2, 2, 2)}, {rolled(3)}}
end
for _, shape in ipairs{{3, 2}, {2, 3}, {2, 2, 3}} do
  table.insert(samples.linalg_lu_factor, {steady(table.unpack(shape))})
end
table.insert(samples.linalg_det, {flat, once = true})
samples.logdet = {{steady(3, 3)}, {steady(2, 2, 2)}}
samples.linalg_solve = {
  {steady(3, 3), x(-1, 1, 3, 2)}, {steady(2, 3, 3), x(-1, 1, 3)}, {steady(3, 3), x(-1, 1, 2, 3, 2)},
  {steady(2, 3, 3), x(-1, 1, 2, 3)}, {rolled(3), x(-1, 1, 2, 3), {left = false}},
}
local pivots = int("int32", {3}, {3, 3, 3})
samples.linalg_lu_solve = {
  {steady(3, 3), pivots, x(-1, 1, 3, 2)}, {steady(3, 3), pivots, x(-1, 1, 3, 2), {adjoint = true}},
  {steady(3, 3), pivots, x(-1, 1, 2, 3), {left = false}},
}
samples.linalg_cholesky = {{const(0, 0, 2, 2), grad = false}} -- with gradients: linalg_spec
samples.linalg_cholesky[1][1].d = {4, 1, 1, 3}
samples.cholesky_solve = {
  {x(-1, 1, 3, 2), triangle(false, 3)}, {x(-1, 1, 3, 2), triangle(true, 3), {upper = true}},
}
samples.cholesky_inverse = {{triangle(false, 3)}, {triangle(true, 2), {upper = true}}}
samples.linalg_solve_triangular = {
  {steady(3, 3), x(-1, 1, 3, 2), {upper = true}},
  {steady(2, 3, 3), x(-1, 1, 3, 2), {upper = false}},
  {steady(3, 3), x(-1, 1, 2, 3), {upper = true, left = false, unitriangular = true}},
  {steady(3, 3), x(-1, 1, 2, 3), {upper = false, left = false}},
}
samples.linalg_qr = {
  {steady(3, 3)}, {steady(4, 2)}, {steady(2, 4)}, {steady(2, 2, 2), "complete"},
  {const(-1, 1, 3, 2), "r", grad = false},
}
samples.linalg_svd = {
  {steady(3, 3)}, {steady(4, 2), {full_matrices = false}}, {steady(2, 4), {full_matrices = false}},
  {const(-1, 1, 2, 3), grad = false},
}
samples.linalg_svdvals = {{steady(3, 3)}, {steady(2, 2, 4)}}
for _, name in ipairs{"linalg_eigh", "linalg_eigvalsh"} do -- with gradients: linalg_spec
  samples[name] = {{const(-1, 1, 3, 3), grad = false}, {const(-1, 1, 2, 3, 3), "U", grad = false}}
end
samples.linalg_pinv = {{steady(3, 2)}, {steady(2, 4)}}
samples.pinverse = {{steady(3, 2)}, {steady(2, 4)}, {steady(2, 2, 2), {rtol = 1e-3}}}
samples.linalg_lstsq = {
  {steady(4, 2), x(-1, 1, 4, 3)}, {steady(2, 4), x(-1, 1, 2)}, {steady(2, 3, 2), x(-1, 1, 3, 1)},
}
samples.linalg_matrix_rank = {{const(-1, 1, 2, 3), grad = false}}
samples.linalg_cond = {{steady(3, 3)}, {steady(3, 3), "fro"}, {steady(2, 2, 2), 1}, {steady(2, 3)}}
samples.linalg_matrix_norm = {
  {steady(2, 3)}, {steady(2, 3), "nuc"}, {steady(2, 3, 2), 2, {dim = {1, 3}, keepdim = true}},
  {steady(2, 3), -1}, {steady(2, 2, 3), math.huge},
}
samples.linalg_vector_norm = {{x(-1, 1, 2, 3)}, {x(0.2, 1, 2, 3), 3, {dim = 1, keepdim = true}}}
samples.linalg_matrix_power = {{steady(3, 3), 3}, {steady(2, 2, 2), -2}, {steady(2, 2), 1},
  {steady(2, 2), 0}}
samples.linalg_multi_dot = {
  {{x(-1, 1, 2, 3), x(-1, 1, 3, 4), x(-1, 1, 4, 2)}}, {{x(-1, 1, 3), x(-1, 1, 3, 2), x(-1, 1, 2)}},
}
samples.linalg_cross = {
  {x(-1, 1, 2, 3), x(-1, 1, 2, 3)}, {x(-1, 1, 3, 2), x(-1, 1, 3, 1), {dim = 1}},
}
samples.cross = {{x(-1, 1, 3, 2), x(-1, 1, 3, 2)}, {x(-1, 1, 2, 3), x(-1, 1, 1, 3), 2}}
samples.linalg_vecdot = {{x(-1, 1, 2, 3), x(-1, 1, 3)}, {x(-1, 1, 3, 2), x(-1, 1, 3, 2), {dim = 1}}}
samples.linalg_vander = {{x(-1, 1, 3)}, {x(-1, 1, 2, 2), 4}}

samples.vander = {{x(-1, 1, 3)}, {x(-1, 1, 3), 4, {increasing = true}}}
samples.linalg_diagonal = {{steady(2, 3)}, {steady(3, 2, 2), 1, {dim1 = 1, dim2 = 2}}}
local cube = steady(6, 6)
cube.s = {6, 2, 3}
samples.linalg_tensorinv = {{cube, {ind = 1}}}
local plate = steady(3, 3)
plate.s = {3, 3, 1}
samples.linalg_tensorsolve = {
  {steady(6, 6), x(-1, 1, 6)}, {plate, x(-1, 1, 3), {dims = {1}}},
}
samples.linalg_lu = {
  {steady(3, 3)}, {rolled(3)}, {steady(2, 3, 2)}, {steady(2, 3)},
}
samples.linalg_householder_product = {
  {x(-1, 1, 3, 2), x(-1, 1, 2)}, {x(-1, 1, 2, 3, 3), x(-1, 1, 2, 1)},
}
for _, name in ipairs{"linalg_matrix_exp", "matrix_exp"} do
  samples[name] = {{x(-1, 1, 3, 3)}, {x(-3, 3, 2, 2, 2)}}
end
samples.linalg_inv_ex = {{steady(3, 3)}, {steady(2, 2, 2)}}
samples.linalg_cholesky_ex = samples.linalg_cholesky

-- ---- Fourier transforms: complex numbers in a last dim of 2 ----

samples.complex = {{x(-1, 1, 2, 3), x(-1, 1, 3)}}
for _, name in ipairs{"fft_fft", "fft_ifft"} do
  samples[name] = {
    {x(-1, 1, 2, 3, 2)}, {x(-1, 1, 4, 2), {n = 6, norm = "ortho"}},
    {x(-1, 1, 5, 2, 2), {n = 3, dim = 1, norm = "forward"}},
  }
end
samples.fft_rfft = {
  {x(-1, 1, 2, 4)}, {x(-1, 1, 5), {n = 7, norm = "ortho"}}, {x(-1, 1, 5, 2), 3, 1, "forward"},
}
samples.fft_irfft = {
  {x(-1, 1, 2, 3, 2)}, {x(-1, 1, 3, 2), {n = 5, norm = "ortho"}}, {x(-1, 1, 3, 2, 2), 3, 1},
}
samples.fft_hfft, samples.fft_ihfft = samples.fft_irfft, samples.fft_rfft
for _, dims in ipairs{"2", "n"} do
  for _, name in ipairs{"fft_fft", "fft_ifft", "fft_irfft", "fft_hfft"} do
    samples[name .. dims] = {
      {x(-1, 1, 2, 3, 2)}, {x(-1, 1, 2, 3, 2), {s = {3, 4}, dim = {2, 1}, norm = "ortho"}},
    }
  end
  for _, name in ipairs{"fft_rfft", "fft_ihfft"} do
    samples[name .. dims] = {
      {x(-1, 1, 2, 3)}, {x(-1, 1, 2, 3), {s = {3, 4}, dim = {2, 1}, norm = "forward"}},
    }
  end
end
samples.stft = {
  {x(-1, 1, 6), 4}, {x(-1, 1, 2, 6), 4, 2, x(0.2, 1, 4), {onesided = false}},
  {x(-1, 1, 7), 4, 3, 3, x(0.2, 1, 3), {center = false, normalized = true}},
}
samples.istft = {
  {x(-1, 1, 3, 4, 2), 4}, {x(-1, 1, 2, 3, 3, 2), 4, 2, x(0.2, 1, 4), {length = 3}},
  {x(-1, 1, 4, 3, 2), 4, 2, {onesided = false, normalized = true, center = false}},
}
for _, name in ipairs{"hann", "hamming", "blackman", "bartlett", "kaiser"} do
  samples[name .. "_window"] = {
    {5, {dtype = "float64"}, grad = false}, {4, false, {dtype = "float64"}, grad = false},
  }
end

-- ---- differences, products, counts ----

samples.diff = {
  {x(-1, 1, 2, 4)}, {x(-1, 1, 4, 2), {n = 2, dim = 1}},
  {x(-1, 1, 3), {prepend = x(-1, 1, 1), append = x(-1, 1, 2)}}, {mask, grad = false},
}
samples.trapezoid = {
  {x(-1, 1, 2, 4)}, {x(-1, 1, 3, 2), x(-1, 1, 3), {dim = 1}}, {x(-1, 1, 4), {dx = 0.5}},
  {x(-1, 1, 2, 3), x(-1, 1, 2, 3)},
}
samples.kron = {{x(-1, 1, 2, 3), x(-1, 1, 3, 2)}, {x(-1, 1, 2), x(-1, 1, 2, 2)},
  {x(-1, 1, 2, 2), x(-1, 1, 17)}} -- 17: rows that are not repeated first
samples.heaviside = {
  {off_zero(2, 2, 3), 0.5, grad = false}, {const(-1, 1, 3), const(-1, 1, 3), grad = false},
}
samples.count_nonzero = {{mask, grad = false}, {const(-1, 1, 2, 3), {dim = {2}}, grad = false}}

return samples
