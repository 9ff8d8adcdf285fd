-- Creation of tensors like others, of strided ones, and what dtypes hold.

local core = require "demilune.core"
local caller = require "demilune.caller"
local dtypes = require "demilune.dtypes"
local options = require "demilune.options"
local shown = require "demilune.shown"
local op, rows = require("demilune.ops.define").family()

-- Options of a tensor like x.
local function like(x, dtype, device, requires_grad)
  return {dtype = dtype or x.dtype, device = device or x.device, requires_grad = requires_grad}
end

for name, what in pairs{zeros = "zeros", ones = "ones", empty = "an unset tensor"} do
  op["new_" .. name]("x; size..., dtype?, device?, requires_grad = false",
    what .. " of a size, of x's dtype and on its device where none is given",
    function(x, size, ...) return core[name](size, like(x, ...)) end, "method")
end
op.new_full("x; size..., fill_value, dtype?, device?, requires_grad = false", "a tensor of a size, "
  .. "every element the value, of x's dtype and on its device where none is given",
  function(x, size, value, ...) return core.full(size, value, like(x, ...)) end, "method")
op.new_tensor("x; data, dtype?, device?, requires_grad = false", "a tensor of the numbers in "
  .. "data, of "
  .. "x's dtype and on its device where none is given", function(x, data, ...)
  return core.tensor(data, like(x, ...))
end, "method")
op.scalar_tensor("; value, dtype?, device?, requires_grad = false", "a 0-dim tensor, of the "
  .. "default "
  .. "dtype where none is given", function(value, dtype, device, requires_grad)
  return core.tensor(value, {dtype = dtype or core.get_default_dtype(), device = device,
    requires_grad = requires_grad})
end)

-- ---- dtypes ----

op.is_floating_point("x", "whether x's dtype is a float", function(x)
  return x:is_floating_point()
end, "function")
op.is_complex("x", "false: there are no complex numbers", function() return false end)
op.is_nonzero("x", "whether the one element of x is not 0", function(x)
  local v = x:item()
  return v ~= 0 and v ~= false
end)

op.isreal("x", "true everywhere: there are no complex numbers", function(x)
  return core.ones_like(x, {dtype = "bool"})
end)

-- The row of the dtype that an argument names.
local function row_of(what, argument, name)
  local row = dtypes.of[name]
  if row then return row end
  local near = type(name) == "string" and options.nearest(name, dtypes.of)
  caller.raise("%s: %s is %s, wanted a dtype%s", what, argument, tostring(name),
    near and ("; did you mean '%s'?"):format(near) or "")
end

local RANK = {bool = 1, int = 2, float = 3}

op.can_cast("; from_, to", "whether values of the first dtype may be written into the second: from "
  .. "bool to integers to floats, and between sizes", function(from, to)
  return RANK[row_of("can_cast", "from_", from).kind] <= RANK[row_of("can_cast", "to", to).kind]
end)
op.promote_types("; type1, type2", "the dtype of sums of tensors of two dtypes", function(a, b)
  row_of("promote_types", "type1", a)
  row_of("promote_types", "type2", b)
  return core.add(core.empty({0}, {dtype = a}), core.empty({0}, {dtype = b})).dtype
end)

-- A small tensor that promotes as v does: by its dtype, and whether it has dims; or the number.
local function stand_in(v)
  return core.is_tensor(v) and core.empty(v:dim() > 0 and {0} or {}, {dtype = v.dtype}) or v
end

op.result_type("tensor#, other#", "the dtype of the sum of two tensors or numbers: those with dims "
  .. "decide, then those without, then numbers, unless what comes later is of a higher kind (bool, "
  .. "integer, float)", function(a, b)
  if not core.is_tensor(a) and not core.is_tensor(b) then a, b = core.tensor(a), core.tensor(b) end
  return core.add(stand_in(a), stand_in(b)).dtype
end)

op.finfo("; dtype?", "a float dtype's numbers: bits, eps, max, min, tiny (smallest_normal), "
  .. "smallest_subnormal, resolution; of the default dtype where none is given", function(dtype)
  dtype = dtype or core.get_default_dtype()
  local f = dtypes.of[dtype]
  if not f or f.kind ~= "float" then
    caller.raise("finfo: dtype is '%s', wanted a float; hint: iinfo", tostring(dtype))
  end
  local digits = math.floor(-math.log(f.eps, 10))
  return shown{dtype = dtype, bits = 8 * f.size, eps = f.eps, max = f.max, min = -f.max,
    tiny = f.tiny, smallest_normal = f.tiny,
    smallest_subnormal = f.tiny * f.eps, resolution = 10.0 ^ -digits}
end)
op.iinfo("; dtype", "an integer dtype's numbers: bits, max, min", function(dtype)
  local row = dtypes.of[dtype]
  if not row or row.kind ~= "int" then
    caller.raise("iinfo: dtype is '%s', wanted an integer; hint: finfo", tostring(dtype))
  end
  local bits, unsigned = 8 * row.size, dtype == "uint8"
  local max = math.maxinteger >> (64 - bits - (unsigned and 1 or 0))
  return shown{dtype = dtype, bits = bits, max = max, min = unsigned and 0 or -max - 1}
end)

return rows
