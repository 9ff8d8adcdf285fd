-- Turns test cases (plain data) into tensors and compares results with them.
-- A tensor literal is {t = dtype, s = shape, d = values in row-major order, g = gradient}.
-- scripts/golden and spec/samples.lua write such literals.

local case = {}

-- The gap after 1.0: 2^-mantissa bits.
case.EPS = {float64 = 2^-52, float32 = 2^-23, float16 = 2^-10, bfloat16 = 2^-7}
local TINIEST = {float64 = 0x1p-1074, float32 = 0x1p-149, float16 = 0x1p-24, bfloat16 = 0x1p-133}

function case.numel(shape)
  local n = 1
  for _, s in ipairs(shape) do n = n * s end
  return n
end

function case.is_literal(v) return type(v) == "table" and v.t ~= nil and v.s ~= nil end

-- The values as nested tables, as dm.tensor takes them.
local function nested(literal, values)
  local at = 0
  local function level(dim)
    if dim > #literal.s then
      at = at + 1
      return values[at]
    end
    local row = {}
    for i = 1, literal.s[dim] do row[i] = level(dim + 1) end
    return row
  end
  return level(1)
end

-- The same values in a tensor that is not contiguous.
local function scatter_in_memory(dm, x, n_dim)
  if n_dim == 1 then return dm.stack({x, x}, {dim = 2}):select(2, 1) end
  return x:transpose(1, -1):contiguous():transpose(1, -1)
end

-- The tensor of a literal. how.strided: not contiguous, where that is possible;
-- how.grad: a leaf that requires a gradient if the literal carries one.
function case.build(dm, literal, how)
  how = how or {}
  local n = case.numel(literal.s)
  local x
  if n == 0 then
    local args = {table.unpack(literal.s)}
    args[#args + 1] = {dtype = literal.t}
    x = dm.zeros(table.unpack(args))
  else
    local values = literal.d
    if literal.t == "bool" then
      values = {}
      for i, v in ipairs(literal.d) do values[i] = v ~= 0 end
    end
    x = dm.tensor(nested(literal, values), {dtype = literal.t})
  end
  if how.strided and n > 1 then x = scatter_in_memory(dm, x, #literal.s):detach() end
  if how.grad and literal.g then x:requires_grad_() end
  return x
end

-- Arguments with every literal replaced by its tensor. Pairs of literal and
-- tensor are appended to `made`, in no particular order.
function case.decode(dm, v, how, made)
  if type(v) ~= "table" then return v end
  if case.is_literal(v) then
    local x = case.build(dm, v, how)
    if made then made[#made + 1] = {literal = v, tensor = x} end
    return x
  end
  local out = {}
  for key, item in pairs(v) do out[key] = case.decode(dm, item, how, made) end
  return out
end

-- Calls that are not dm[op](...).
local SYNTAX = {
  ["[]"] = function(x, key) return x[key] end,
  ["[]="] = function(x, key, value)
    x = x.requires_grad and x:clone() or x
    x[key] = value
    return x
  end,
  ["+"] = function(a, b) return a + b end,
  ["-"] = function(a, b) return a - b end,
  ["*"] = function(a, b) return a * b end,
  ["/"] = function(a, b) return a / b end,
  ["//"] = function(a, b) return a // b end,
  ["%"] = function(a, b) return a % b end,
  ["^"] = function(a, b) return a ^ b end,
  unm = function(a) return -a end,
  ctc_of_logits = function(x, ...) return x:log_softmax(-1):ctc_loss(...) end,
  -- The sign of these vectors is LAPACK's choice.
  abs_of = function(op, ...)
    local outs = table.pack(require("demilune")[op](...))
    for i = 1, outs.n do outs[i] = outs[i]:abs() end
    return outs
  end,
}
-- Ops that change their operand run on a clone, so that it may be a leaf.
for _, name in ipairs{"copy_", "fill_", "zero_"} do
  SYNTAX[name] = function(x, ...)
    local y = x:clone()
    return y[name](y, ...)
  end
end

-- Runs op on args and returns its outputs as a list, whether it returns values or a table.
function case.call(dm, op, args)
  local fn = SYNTAX[op] or dm[op] or dm.nn.functional[op] or dm.methods[op:match "^x:(.+)$"]
    or dm.vision[op]
  if fn == nil then error("dm." .. op .. " is missing", 0) end
  local outs = table.pack(fn(table.unpack(args)))
  if outs.n == 1 and type(outs[1]) == "table" and not outs[1].dtype then return outs[1] end
  return outs
end

-- The elements row by row, bool as 1 and 0.
function case.values(x)
  local out = {}
  local function walk(v)
    if type(v) == "table" then
      for _, item in ipairs(v) do walk(item) end
    elseif type(v) == "boolean" then
      out[#out + 1] = v and 1 or 0
    else
      out[#out + 1] = v
    end
  end
  if x:numel() == 0 then return out end
  walk(x:dim() == 0 and x:item() or x:totable())
  return out
end

-- Literals of 16 and 32 bits are written to float32's precision.
local function as_stored(v, dtype)
  if dtype == "float32" or dtype == "float16" or dtype == "bfloat16" then
    return (string.unpack("f", string.pack("f", v)))
  end
  return v
end

local function is_nan(v) return v ~= v end

local function same(got, want, tol, signed_zero)
  if is_nan(want) then return is_nan(got) end
  if got == want then
    return not (signed_zero and want == 0) or 1 / got == 1 / want
  end
  return math.abs(want) < math.huge and math.abs(got - want) <= tol -- false for NaN, too
end

-- The largest finite magnitude of a list.
function case.magnitude(list, m)
  m = m or 0
  for _, v in ipairs(list) do
    local a = math.abs(v)
    if a > m and a < math.huge then m = a end
  end
  return m
end

-- The largest allowed |got - want|. e is the dtype's gap after 1.0 (case.EPS).
--   exact       0
--   pointwise   8 e |want|: a few ulp of two good libraries. 16 bits: computed
--               in float32 and rounded once, so one ulp, 1.5 e |want|.
--   near        as pointwise, and as much of 1: 1 - y^2 and the like cancel, and 16 bits read
--               a rounded y.
--   activation  also 4 e |x|, x being the element's input: x (1 + erf(x)) and
--               the like cancel by definition.
--   sum         also 4 e32 M^2 sqrt(N): rounding errors of N terms add like a
--               random walk; a term is at most a product of two inputs, each at
--               most M. For 16 bits 2 e (|want| + max |out|), for whatever is
--               composed of several rounded steps.
--   exp         as sum, and 4 e M max |out|: a matrix A that is off by e |A| has an
--               exponential that is off by |A| times as much (Higham 2008, 10.2).
-- Gradients are sums whose inputs include the cotangents; in 16 bits twice that,
-- and 16 bits anywhere in the call (scale.e) make every gradient of it as coarse.
function case.tolerance(kind, dtype, want, scale)
  local e = case.EPS[dtype]
  if kind == "exact" or not e then return 0 end
  if scale.grad then e = math.max(e, scale.e) end
  local half = e > 2^-20
  local tol = TINIEST[dtype] + (half and 1.5 or 8) * e * math.abs(want)
  if kind == "near" then tol = tol + (half and 2.5 or 8) * e end
  if kind == "activation" then tol = tol + (half and 1 or 4) * e * scale.x end
  if kind == "exp" then tol = tol + 4 * e * scale.m * scale.out end
  if kind == "sum" or kind == "exp" then
    local e_sum = half and case.EPS.float32 or e
    tol = tol + 4 * e_sum * scale.m ^ 2 * math.sqrt(scale.n)
    if half then tol = tol + (scale.grad and 4 or 2) * e * scale.out end
  end
  return tol
end

-- Raises unless x has the literal's dtype, shape and values.
-- scale: {m, n, grad, e, inputs = values by element for "activation"}.
function case.check(x, literal, kind, scale, what)
  what = what or "result"
  if x == nil then error(what .. " is nil", 0) end
  if type(x) ~= "userdata" then
    error(("%s is a %s, not a tensor"):format(what, type(x)), 0)
  end
  if x.dtype ~= literal.t then
    error(("%s has dtype %s, wanted %s"):format(what, x.dtype, literal.t), 0)
  end
  local got_shape, want_shape = {table.unpack(x.shape)}, literal.s
  got_shape, want_shape = table.concat(got_shape, ", "), table.concat(want_shape, ", ")
  if got_shape ~= want_shape then
    error(("%s has shape {%s}, wanted {%s}"):format(what, got_shape, want_shape), 0)
  end
  local got, inputs = case.values(x), scale.inputs
  scale.out = case.magnitude(literal.d)
  for i, d in ipairs(literal.d) do
    local want = as_stored(d, literal.t)
    scale.x = inputs and inputs[i] and math.min(math.abs(inputs[i]), 1e30) or 0
    local tol = case.tolerance(kind, literal.t, want, scale)
    if not same(got[i], want, tol, kind == "exact") then
      error(("%s element %d is %.17g, wanted %.17g (tolerance %.3g)")
        :format(what, i, got[i] or 0 / 0, want, tol), 0)
    end
  end
  if #got ~= #literal.d then
    error(("%s has %d elements, wanted %d"):format(what, #got, #literal.d), 0)
  end
end

return case
