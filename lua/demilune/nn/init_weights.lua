-- nn.init: initial values, by PyTorch's formulas. All fill in place, unrecorded.
-- X. Glorot, Y. Bengio 2010 (xavier); K. He et al. 2015 (kaiming); A. Saxe et al. 2014
-- (orthogonal); J. Martens 2010 (sparse).

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local fill = require "demilune.nn.fill"

local init = {}

-- init.NAME(tensor, ...), with the arguments bound: fn(t, o) fills t and returns it.
local function define(name, text, fn)
  local bind = options.signature(name, "tensor: tensor" .. (text ~= "" and ", " .. text or ""))
  init[name] = function(...)
    local o = bind(...)
    return fn(o.tensor, o)
  end
end

--- uniform_(tensor, a, b): uniform numbers of [a, b) ([0, 1)). Like all of these, it returns
--- the tensor.
define("uniform_", [[a: number = 0, b: number = 1, generator?: generator]], function(t, o)
  return fill(t, "uniform_", o.a, o.b, {generator = o.generator})
end)
--- normal_(tensor, mean, std): normal numbers of this mean (0) and std (1).
define("normal_", "mean: number = 0, std: number = 1, generator?: generator", function(t, o)
  return fill(t, "normal_", o.mean, o.std, {generator = o.generator})
end)
--- constant_(tensor, val): fills it with the value.
define("constant_", "val: number", function(t, o) return fill(t, "fill_", o.val) end)
--- ones_(tensor): fills it with 1.
define("ones_", "", function(t) return fill(t, "fill_", 1) end)
--- zeros_(tensor): fills it with 0.
define("zeros_", "", function(t) return fill(t, "zero_") end)

--- trunc_normal_(tensor, mean, std, a, b): normal numbers within [a, b] (-2, 2); those outside
--- are drawn again.
define("trunc_normal_", [[mean: number = 0, std: number = 1, a: number = -2, b: number = 2,
  generator?: generator]], function(t, o)
  local _ <close> = core.no_grad()
  local mean, std, a, b, how = o.mean, o.std, o.a, o.b, {generator = o.generator}
  if a >= b or mean + 6 * std < a or mean - 6 * std > b then
    caller.raise("trunc_normal_: no normal number of mean %g, std %g is likely in [%g, %g]",
      mean, std, a, b)
  end
  t:normal_(mean, std, how)
  while true do
    local outside = core.logical_or(t:lt(a), t:gt(b))
    if not outside:any():item() then return t end
    t:copy_(core.where(outside, core.empty_like(t):normal_(mean, std, how), t))
  end
end)

--- fans(tensor): fan in and fan out of a weight (O, I, ...): I and O, each times the size of the
--- kernel.
function init.fans(t)
  if t:dim() < 2 then
    caller.raise("init: shape %s has no fan; wanted two dims or more", tostring(t.shape))
  end
  local kernel = 1
  for d = 3, t:dim() do kernel = kernel * t:size(d) end
  return t:size(2) * kernel, t:size(1) * kernel
end

-- ---- matrices ----

local function check_matrix(name, t, least, most)
  if t:dim() < least or t:dim() > (most or t:dim()) then
    caller.raise("%s: shape %s, wanted %d%s dims", name, tostring(t.shape), least,
      most == least and "" or most and " to " .. most or " or more")
  end
end

--- eye_(tensor): ones on the diagonal of a matrix, zeros elsewhere.
define("eye_", "", function(t)
  check_matrix("eye_", t, 2, 2)
  local _ <close> = core.no_grad()
  return t:copy_(core.eye(t:size(1), t:size(2)))
end)

--- dirac_(tensor, groups): convolutions (O, I, ...) that hand their channels on, as many as
--- there are; by groups (1).
define("dirac_", "groups: integer = 1", function(t, o)
  local groups = o.groups
  check_matrix("dirac_", t, 3, 5)
  local out, channels = t:size(1), t:size(2)
  if groups < 1 or out % groups ~= 0 then
    caller.raise("dirac_: %d groups do not divide %d channels out", groups, out)
  end
  local _ <close> = core.no_grad()
  t:zero_()
  local middle, per_group = {}, out // groups
  for d = 3, t:dim() do middle[#middle + 1] = t:size(d) // 2 + 1 end
  for g = 0, groups - 1 do
    for d = 1, math.min(per_group, channels) do
      t[{g * per_group + d, d, table.unpack(middle)}] = 1
    end
  end
  return t
end)

--- orthogonal_(tensor, gain): rows (or columns, where those are fewer) that stand at right
--- angles, of length gain (1): the dims behind the first count as one. Random rows, each less
--- its shadow on those before it, twice, for rounding's sake.
define("orthogonal_", "gain: number = 1, generator?: generator", function(t, o)
  check_matrix("orthogonal_", t, 2)
  local _ <close> = core.no_grad()
  local n, m = t:size(1), t:numel() // math.max(1, t:size(1))
  if t:numel() == 0 then return t end
  local few, many = math.min(n, m), math.max(n, m)
  local q = core.randn(few, many, {dtype = "float64", generator = o.generator})
  for i = 1, few do
    local row = q[i]
    for _ = 1, i > 1 and 2 or 0 do
      local before = q:narrow(1, 1, i - 1)
      row:sub_(before:t():mv(before:mv(row)))
    end
    row:div_(row:norm())
  end
  if n > m then q = q:t() end
  return t:copy_((q * o.gain):reshape(table.unpack(t.shape)))
end)

--- sparse_(tensor, sparsity, std): normal numbers of std (0.01), of which a share `sparsity`
--- of each column is zero.
define("sparse_", "sparsity: number, std: number = 0.01, generator?: generator", function(t, o)
  local sparsity, how = o.sparsity, {generator = o.generator}
  check_matrix("sparse_", t, 2, 2)
  if not (sparsity >= 0 and sparsity <= 1) then
    caller.raise("sparse_: sparsity is %s, wanted 0 to 1", tostring(sparsity))
  end
  local _ <close> = core.no_grad()
  t:normal_(0, o.std, how)
  local rows, zeros = t:size(1), math.ceil(sparsity * t:size(1))
  if zeros == 0 then return t end
  for column = 1, t:size(2) do
    local chosen = t:select(2, column)
    chosen[core.randperm(rows, how):narrow(1, 1, zeros):to(t.device)] = 0
  end
  return t
end)

-- ---- by fan in and fan out ----

local GAIN = {tanh = 5 / 3, relu = math.sqrt(2), selu = 3 / 4}

local NONLINEARITY = [['linear'|'conv1d'|'conv2d'|'conv3d'|'conv_transpose1d'|
  'conv_transpose2d'|'conv_transpose3d'|'sigmoid'|'tanh'|'relu'|'leaky_relu'|'selu']]

local bind_gain = options.signature("calculate_gain", "nonlinearity: " .. NONLINEARITY
  .. ", param: number = 0.01")

--- calculate_gain(nonlinearity, param): the factor by which a nonlinearity wants the deviation
--- of the weights before it: math.sqrt(2) for 'relu'. param: the slope of 'leaky_relu' (0.01).
function init.calculate_gain(...)
  local o = bind_gain(...)
  if o.nonlinearity == "leaky_relu" then return math.sqrt(2 / (1 + o.param ^ 2)) end
  return GAIN[o.nonlinearity] or 1
end

local function kaiming_std(t, o)
  local fan_in, fan_out = init.fans(t)
  local fan = o.mode == "fan_in" and fan_in or fan_out
  return init.calculate_gain(o.nonlinearity, o.a) / math.sqrt(fan)
end

local function xavier_std(t, o)
  local fan_in, fan_out = init.fans(t)
  return o.gain * math.sqrt(2 / (fan_in + fan_out))
end

-- init.NAME_uniform_(tensor, ...) and init.NAME_normal_(tensor, ...) fill it with numbers
-- whose standard deviation is deviation(tensor, o).
local function scheme(name, text, deviation)
  text = text .. ", generator?: generator"
  define(name .. "_uniform_", text, function(t, o)
    local bound = math.sqrt(3) * deviation(t, o)
    return init.uniform_(t, -bound, bound, o.generator)
  end)
  define(name .. "_normal_", text, function(t, o)
    return init.normal_(t, 0, deviation(t, o), o.generator)
  end)
end
scheme("kaiming", [[a: number = 0, mode: 'fan_in'|'fan_out' = 'fan_in',
  nonlinearity: ]] .. NONLINEARITY .. " = 'leaky_relu'", kaiming_std)
scheme("xavier", "gain: number = 1", xavier_std)

return init
