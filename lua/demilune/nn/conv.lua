-- Conv2d and the pools. Planes are (N, C, H, W) or (C, H, W).

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local init = require "demilune.nn.init_weights"
local Module = require "demilune.nn.module"

local layers = {}

local function pair(v)
  if type(v) == "table" then return {v[1], v[2]} end
  return {v, v}
end

local function text(v)
  if type(v) ~= "table" then return tostring(v) end
  return v[1] == v[2] and tostring(v[1]) or ("{%d, %d}"):format(v[1], v[2])
end

-- "3x3, stride = 2": what differs from the defaults.
local function repr(self, head, defaults)
  local parts = {head}
  for _, default in ipairs(defaults) do
    local value = text(self[default[1]])
    if value ~= tostring(default[2]) then parts[#parts + 1] = default[1] .. " = " .. value end
  end
  return table.concat(parts, ", ")
end

local Conv2d = Module:extend "Conv2d"
Conv2d.keeps_nothing = true

local CONV = {stride = 1, padding = 0, dilation = 1, groups = 1, bias = true,
  padding_mode = "zeros", dtype = "float32", device = options.NONE}

-- Zeros on each side of a plane. "same" may want one more at the end.
local function padding_of(o, kernel, dilation, stride)
  if o.padding == "valid" then return {0, 0} end
  if o.padding ~= "same" then
    if type(o.padding) == "string" then
      caller.raise("Conv2d: padding is '%s', wanted a number, a pair, 'same' or 'valid'", o.padding)
    end
    return pair(o.padding)
  end
  local around, after = {}, {}
  for d = 1, 2 do
    if stride[d] ~= 1 then
      caller.raise("Conv2d: padding 'same' wants stride 1, got %d", stride[d])
    end
    local total = dilation[d] * (kernel[d] - 1)
    around[d], after[d] = total // 2, total % 2
  end
  return around, after
end

function Conv2d:init(in_channels, out_channels, kernel_size, opts)
  local o = options.read("Conv2d", opts, CONV)
  if o.padding_mode ~= "zeros" then
    caller.raise("Conv2d: padding_mode is '%s', wanted 'zeros'", tostring(o.padding_mode))
  end
  if in_channels % o.groups ~= 0 or out_channels % o.groups ~= 0 then
    caller.raise("Conv2d: groups = %d does not divide %d channels in and %d out", o.groups,
      in_channels, out_channels)
  end
  self.in_channels, self.out_channels, self.groups = in_channels, out_channels, o.groups
  self.kernel_size, self.stride = pair(kernel_size), pair(o.stride)
  self.dilation = pair(o.dilation)
  self.padding, self.padding_after = padding_of(o, self.kernel_size, self.dilation, self.stride)
  self._opts = {stride = self.stride, padding = self.padding, dilation = self.dilation,
    groups = o.groups}
  local how = {dtype = o.dtype, device = o.device}
  self.weight = core.parameter(core.empty(out_channels, in_channels // o.groups,
    self.kernel_size[1], self.kernel_size[2], how))
  if o.bias then self.bias = core.parameter(core.empty(out_channels, how)) end
  self:reset_parameters()
end

-- PyTorch's: both uniform within 1 / sqrt(fan in).
function Conv2d:reset_parameters()
  init.kaiming_uniform_(self.weight, {a = math.sqrt(5)})
  local fan_in = init.fans(self.weight)
  if self.bias and fan_in > 0 then
    init.uniform_(self.bias, -1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))
  end
end

-- x with `after` more zeros below and to the right.
local function pad_after(x, after)
  for d = 1, 2 do
    if after[d] > 0 then
      local shape = {table.unpack(x.shape)}
      shape[#shape - 2 + d] = after[d]
      shape[#shape + 1] = {dtype = x.dtype, device = x.device}
      x = core.cat({x, core.zeros(table.unpack(shape))}, d - 3)
    end
  end
  return x
end

function Conv2d:forward(x)
  if self.padding_after then x = pad_after(x, self.padding_after) end
  return core.conv2d(x, self.weight, self.bias, self._opts)
end

function Conv2d:extra_repr()
  local head = ("%d -> %d, %dx%d"):format(self.in_channels, self.out_channels,
    self.kernel_size[1], self.kernel_size[2])
  local extra = repr(self, head, {{"stride", 1}, {"padding", 0}, {"dilation", 1}, {"groups", 1}})
  return self.bias and extra or extra .. ", bias = false"
end

local function pool(name, op, defaults, shown)
  local Pool = Module:extend(name)
  Pool.keeps_nothing = true
  function Pool:init(kernel_size, opts)
    self._opts = options.read(name, opts, defaults)
    for key, value in pairs(self._opts) do self[key] = value end
    self.kernel_size = kernel_size
    self.stride = self.stride or kernel_size
    self._opts.kernel_size = kernel_size
  end
  function Pool:forward(x) return core[op](x, self._opts) end
  function Pool:extra_repr()
    return repr(self, text(self.kernel_size), {{"stride", text(self.kernel_size)},
      table.unpack(shown)})
  end
  layers[name] = Pool
end

pool("MaxPool2d", "max_pool2d",
  {stride = options.NONE, padding = 0, dilation = 1, return_indices = false, ceil_mode = false},
  {{"padding", 0}, {"dilation", 1}, {"ceil_mode", false}})
pool("AvgPool2d", "avg_pool2d",
  {stride = options.NONE, padding = 0, ceil_mode = false, count_include_pad = true,
    divisor_override = options.NONE},
  {{"padding", 0}, {"ceil_mode", false}, {"count_include_pad", true}})

local AdaptiveAvgPool2d = Module:extend "AdaptiveAvgPool2d"
AdaptiveAvgPool2d.keeps_nothing = true
function AdaptiveAvgPool2d:init(output_size) self.output_size = pair(output_size) end
function AdaptiveAvgPool2d:forward(x) return core.adaptive_avg_pool2d(x, self.output_size) end
function AdaptiveAvgPool2d:extra_repr() return text(self.output_size) end

layers.Conv2d, layers.AdaptiveAvgPool2d = Conv2d, AdaptiveAvgPool2d
return layers
