-- nn.init: initial values, by PyTorch's formulas. All fill in place, unrecorded.
-- X. Glorot, Y. Bengio 2010 (xavier); K. He et al. 2015 (kaiming); A. Saxe et al. 2014
-- (orthogonal); J. Martens 2010 (sparse).

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"

local init = {}

local function fill(t, method, ...)
  local _ <close> = core.no_grad()
  t[method](t, ...)
  return t
end

--- Fills t with uniform numbers of [a, b) ([0, 1)). Like all of these, it returns t.
function init.uniform_(t, a, b) return fill(t, "uniform_", a or 0, b or 1) end
--- Fills t with normal numbers of this mean (0) and std (1).
function init.normal_(t, mean, std) return fill(t, "normal_", mean or 0, std or 1) end
--- Fills t with the value.
function init.constant_(t, value) return fill(t, "fill_", value) end
--- Fills t with 1.
function init.ones_(t) return fill(t, "fill_", 1) end
--- Fills t with 0.
function init.zeros_(t) return fill(t, "zero_") end

--- Normal numbers within [a, b] (-2, 2): those outside are drawn again.
function init.trunc_normal_(t, mean, std, a, b)
  local _ <close> = core.no_grad()
  mean, std, a, b = mean or 0, std or 1, a or -2, b or 2
  if a >= b or mean + 6 * std < a or mean - 6 * std > b then
    caller.raise("trunc_normal_: no normal number of mean %g, std %g is likely in [%g, %g]",
      mean, std, a, b)
  end
  t:normal_(mean, std)
  while true do
    local outside = core.logical_or(t:lt(a), t:gt(b))
    if not outside:any():item() then return t end
    t:copy_(core.where(outside, core.empty_like(t):normal_(mean, std), t))
  end
end

--- fan in and fan out of a weight (O, I, ...): I and O, each times the size of the kernel.
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

--- Ones on the diagonal of a matrix, zeros elsewhere.
function init.eye_(t)
  check_matrix("eye_", t, 2, 2)
  local _ <close> = core.no_grad()
  return t:copy_(core.eye(t:size(1), t:size(2)))
end

--- Convolutions (O, I, ...) that hand their channels on, as many as there are; by groups
--- (1).
function init.dirac_(t, groups)
  groups = groups or 1
  check_matrix("dirac_", t, 3, 5)
  local out, channels = t:size(1), t:size(2)
  if out % groups ~= 0 then
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
end

--- Rows (or columns, where those are fewer) that stand at right angles, of length gain (1):
--- the dims behind the first count as one. Random rows, each less its shadow on those
--- before it, twice, for rounding's sake.
function init.orthogonal_(t, opts)
  local o = options.read("orthogonal_", opts, {gain = 1})
  check_matrix("orthogonal_", t, 2)
  local _ <close> = core.no_grad()
  local n, m = t:size(1), t:numel() // math.max(1, t:size(1))
  if t:numel() == 0 then return t end
  local few, many = math.min(n, m), math.max(n, m)
  local q = core.randn(few, many, {dtype = "float64"})
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
end

--- Normal numbers of std (0.01), of which a share `sparsity` of each column is zero.
function init.sparse_(t, sparsity, std)
  check_matrix("sparse_", t, 2, 2)
  if type(sparsity) ~= "number" or not (sparsity >= 0 and sparsity <= 1) then
    caller.raise("sparse_: sparsity is %s, wanted 0 to 1", tostring(sparsity))
  end
  local _ <close> = core.no_grad()
  t:normal_(0, std or 0.01)
  local rows, zeros = t:size(1), math.ceil(sparsity * t:size(1))
  if zeros == 0 then return t end
  for column = 1, t:size(2) do
    local chosen = t:select(2, column)
    chosen[core.randperm(rows):narrow(1, 1, zeros):to(t.device)] = 0
  end
  return t
end

-- ---- by fan in and fan out ----

local GAIN = {linear = 1, conv2d = 1, sigmoid = 1, tanh = 5 / 3, relu = math.sqrt(2), selu = 3 / 4}

--- The factor by which a nonlinearity wants the deviation of the weights before it: math.sqrt(2)
--- for 'relu'. slope: of 'leaky_relu' (0.01).
function init.calculate_gain(nonlinearity, slope)
  if nonlinearity == "leaky_relu" then return math.sqrt(2 / (1 + (slope or 0.01) ^ 2)) end
  if not GAIN[nonlinearity] then
    caller.raise("init: unknown nonlinearity '%s'", tostring(nonlinearity))
  end
  return GAIN[nonlinearity]
end

local KAIMING = {a = 0, mode = "fan_in", nonlinearity = "leaky_relu"}

local function kaiming_std(name, t, opts)
  local o = options.read(name, opts, KAIMING)
  local fan_in, fan_out = init.fans(t)
  if o.mode ~= "fan_in" and o.mode ~= "fan_out" then
    caller.raise("%s: mode is '%s', wanted 'fan_in' or 'fan_out'", name, tostring(o.mode))
  end
  local fan = o.mode == "fan_in" and fan_in or fan_out
  return init.calculate_gain(o.nonlinearity, o.a) / math.sqrt(fan)
end

local function xavier_std(name, t, opts)
  local o = options.read(name, opts, {gain = 1})
  local fan_in, fan_out = init.fans(t)
  return o.gain * math.sqrt(2 / (fan_in + fan_out))
end

-- init.NAME_uniform_(t, opts) and init.NAME_normal_(t, opts) fill t with numbers
-- whose standard deviation is deviation(t, opts).
local function scheme(name, deviation)
  local uniform, normal = name .. "_uniform_", name .. "_normal_"
  init[uniform] = function(t, opts)
    local bound = math.sqrt(3) * deviation(uniform, t, opts)
    return init.uniform_(t, -bound, bound)
  end
  init[normal] = function(t, opts) return init.normal_(t, 0, deviation(normal, t, opts)) end
end
scheme("kaiming", kaiming_std)
scheme("xavier", xavier_std)

return init
