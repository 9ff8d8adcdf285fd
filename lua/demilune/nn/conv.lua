-- Convolutions and pools along one, two and three dims: x is (N, C, L), (N, C, H, W) or
-- (N, C, D, H, W), N or not.

local core = require "demilune.core"
local caller = require "demilune.caller"
local follow = require "demilune.nn.follow"
local options = require "demilune.options"
local functional = require "demilune.nn.functional"
local fill = require "demilune.nn.fill"
local Module = require "demilune.nn.module"

local layers = {}

-- n numbers, from so many or from one.
local function tuple(name, key, v, n)
  if type(v) == "number" then
    local all = {}
    for i = 1, n do all[i] = v end
    return all
  end
  if type(v) ~= "table" or #v ~= n then
    caller.raise("%s: %s is %s, wanted a number%s", name, key,
      type(v) == "table" and ("a table of %d"):format(#v) or tostring(v),
      n > 1 and (" or a table of %d"):format(n) or "")
  end
  return {table.unpack(v)}
end

local function text(v)
  if type(v) ~= "table" then return tostring(v) end
  for i = 2, #v do
    if v[i] ~= v[1] then return "{" .. table.concat(v, ", ") .. "}" end
  end
  return tostring(v[1])
end

-- "3x3, stride = 2": what differs from the defaults.
local function repr(self, head, defaults)
  local parts = {head}
  for _, default in ipairs(defaults) do
    local name, value = default[1], self[default[1]]
    if value ~= nil and text(value) ~= tostring(default[2]) then
      parts[#parts + 1] = name .. " = " .. text(value)
    end
  end
  return table.concat(parts, ", ")
end

-- ---- convolutions ----

-- PyTorch's: both uniform within 1 / sqrt(fan in).
local function reset_parameters(self)
  local fan_in = self.weight:size(2)
  for _, k in ipairs(self.kernel_size) do fan_in = fan_in * k end
  local bound = fan_in > 0 and 1 / math.sqrt(fan_in) or 0
  fill(self.weight, "uniform_", -bound, bound)
  if self.bias then fill(self.bias, "uniform_", -bound, bound) end
end

local SHOWN = {{"stride", 1}, {"padding", 0}, {"output_padding", 0}, {"dilation", 1},
  {"groups", 1}, {"padding_mode", "zeros"}}

local function describe(self)
  local head = ("%d -> %d, %s"):format(self.in_channels, self.out_channels,
    table.concat(self.kernel_size, "x"))
  local extra = repr(self, head, SHOWN)
  return self.bias and extra or extra .. ", bias = false"
end

-- Fields that Conv and ConvTranspose share; `sides` gives the weight's first two dims from
-- in_channels, out_channels and groups.
local function begin(self, name, dims, o, sides)
  local in_channels, out_channels = o.in_channels, o.out_channels
  if o.groups < 1 or in_channels % o.groups ~= 0 or out_channels % o.groups ~= 0 then
    caller.raise("%s: groups = %d does not divide %d channels in and %d out", name, o.groups,
      in_channels, out_channels)
  end
  self.in_channels, self.out_channels, self.groups = in_channels, out_channels, o.groups
  self.kernel_size = tuple(name, "kernel_size", o.kernel_size, dims)
  self.stride = tuple(name, "stride", o.stride, dims)
  self.dilation = tuple(name, "dilation", o.dilation, dims)
  self.padding_mode = o.padding_mode
  local how, shape = {dtype = o.dtype, device = o.device}, sides()
  table.move(self.kernel_size, 1, dims, 3, shape)
  self.weight = core.parameter(core.empty(shape, how))
  if o.bias then self.bias = core.parameter(core.empty(out_channels, how)) end
  reset_parameters(self)
end

-- The argument of pad: `padding` on both sides of each dim, or as "same" wants it.
local function border_of(self, padding, dims)
  local border = {}
  for d = dims, 1, -1 do
    local total = self.dilation[d] * (self.kernel_size[d] - 1)
    border[#border + 1] = padding == "same" and total // 2 or padding[d]
    border[#border + 1] = padding == "same" and total - total // 2 or padding[d]
  end
  return border
end

local function check_padding(name, self, padding, dims)
  if padding == "valid" then return tuple(name, "padding", 0, dims) end
  if padding ~= "same" then return tuple(name, "padding", padding, dims) end
  for d = 1, dims do
    if self.stride[d] ~= 1 then
      caller.raise("%s: padding 'same' wants stride 1, got %d", name, self.stride[d])
    end
  end
  return padding
end

-- Conv2d(in_channels, out_channels, kernel_size, {stride =, padding = number, table, 'same'
-- or 'valid', dilation =, groups =, bias = true, padding_mode = 'zeros', 'reflect',
-- 'replicate' or 'circular'}); Conv1d and Conv3d alike.
local function conv(dims)
  local name, op = ("Conv%dd"):format(dims), ("conv%dd"):format(dims)
  local Conv = Module:extend(name)
  Conv.holds_no_activations = true
  Conv.reset_parameters = reset_parameters
  Conv.extra_repr = describe
  local bind = options.signature(name, [[in_channels: integer, out_channels: integer,
    kernel_size: size, stride, padding, dilation, groups, bias: boolean = true,
    padding_mode: 'zeros'|'reflect'|'replicate'|'circular' = 'zeros', device?: device,
    dtype?: dtype]], op)

  -- Makes the options of the op, and of the padding before it, from the fields.
  local function settle(self)
    self.stride = tuple(name, "stride", self.stride, dims)
    self.dilation = tuple(name, "dilation", self.dilation, dims)
    self.padding = check_padding(name, self, self.padding, dims)
    local border = self.padding_mode ~= "zeros" and border_of(self, self.padding, dims) or nil
    self._border, self._settled = border, {self.padding, self.padding_mode}
    self._opts = {stride = self.stride, padding = border and 0 or self.padding,
      dilation = self.dilation, groups = self.groups}
  end

  function Conv:init(...)
    local o = bind(...)
    begin(self, name, dims, o, function() return {o.out_channels, o.in_channels // o.groups} end)
    self.padding = o.padding
    settle(self)
  end

  -- These fields may have been assigned since the last call.
  local function is_settled(self)
    local o = self._opts
    return self.stride == o.stride and self.dilation == o.dilation and self.groups == o.groups
      and self.padding == self._settled[1] and self.padding_mode == self._settled[2]
  end

  function Conv:forward(x)
    if not is_settled(self) then settle(self) end
    if self._border then x = core.pad(x, self._border, {mode = self.padding_mode}) end
    return core[op](x, self.weight, self.bias, self._opts)
  end
  layers[name] = Conv
end
for dims = 1, 3 do conv(dims) end

-- ConvTranspose2d(in_channels, out_channels, kernel_size, {stride =, padding =,
-- output_padding =, dilation =, groups =, bias = true}): the gradient of a convolution with
-- these options as a layer; ConvTranspose1d and 3d likewise.
-- The argument output_size of a call, which may stand in a table of options.
local function by_name(size)
  return type(size) == "table" and size.output_size or size
end

local function transposed(dims)
  local name, op = ("ConvTranspose%dd"):format(dims), ("conv_transpose%dd"):format(dims)
  local Conv = Module:extend(name)
  Conv.holds_no_activations = true
  Conv.reset_parameters = reset_parameters
  Conv.extra_repr = describe

  local bind = options.signature(name, [[in_channels: integer, out_channels: integer,
    kernel_size: size, stride, padding, output_padding, groups, bias: boolean = true, dilation,
    padding_mode: 'zeros' = 'zeros', device?: device, dtype?: dtype]], op)
  local hold, current = follow "stride, padding, output_padding, groups, dilation"

  function Conv:init(...)
    local o = bind(...)
    begin(self, name, dims, o, function() return {o.in_channels, o.out_channels // o.groups} end)
    hold(self, {stride = self.stride, padding = tuple(name, "padding", o.padding, dims),
      dilation = self.dilation, groups = o.groups,
      output_padding = tuple(name, "output_padding", o.output_padding, dims)})
  end

  -- The padding that makes the output of that size.
  local function padding_for(self, x, size)
    local more, stride = {}, tuple(name, "stride", self.stride, dims)
    local padding = tuple(name, "padding", self.padding, dims)
    local dilation = tuple(name, "dilation", self.dilation, dims)
    for d = 1, dims do
      local least = (x:size(d - dims - 1) - 1) * stride[d] - 2 * padding[d]
        + dilation[d] * (self.kernel_size[d] - 1) + 1
      more[d] = size[#size - dims + d] - least
      if more[d] < 0 or more[d] >= stride[d] then
        caller.raise("%s: output_size %d in dim %d, wanted %d to %d", name,
          size[#size - dims + d], d, least, least + stride[d] - 1)
      end
    end
    return more
  end

  -- output_size: {H, W} of the output, where several sizes lead to the same x; or by name, in
  -- {output_size = {H, W}}.
  function Conv:forward(x, output_size)
    local o = current(self)
    output_size = by_name(output_size)
    if output_size then
      o = {stride = o.stride, padding = o.padding, dilation = o.dilation, groups = o.groups,
        output_padding = padding_for(self, x, output_size)}
    end
    return core[op](x, self.weight, self.bias, o)
  end
  layers[name] = Conv
end
transposed(1)
transposed(2)
transposed(3)

-- ---- pools ----

-- shown: the options that are printed where they differ from the op's defaults.
local function pool(name, op, parameters, shown)
  local bind, defaults = options.signature(name, parameters, op)
  local hold, current = follow(parameters)
  local Pool = Module:extend(name)
  Pool.holds_no_activations = true
  function Pool:init(...)
    local o = bind(...)
    o.stride = o.stride or o.kernel_size
    hold(self, o)
  end
  function Pool:forward(x) return core[op](x, current(self)) end
  function Pool:extra_repr()
    local pairs_shown = {{"stride", text(self.kernel_size)}}
    for i, option in ipairs(shown) do pairs_shown[i + 1] = {option, defaults()[option]} end
    return repr(self, text(self.kernel_size), pairs_shown)
  end
  layers[name] = Pool
end

-- AdaptiveAvgPool2d(output_size), AdaptiveMaxPool2d(output_size, return_indices).
local function adaptive(name, op, dims, parameters)
  local bind = options.signature(name, parameters, op)
  local hold, current = follow(parameters)
  local Pool = Module:extend(name)
  Pool.holds_no_activations = true
  function Pool:init(...)
    local o = bind(...)
    o.output_size = tuple(name, "output_size", o.output_size, dims)
    hold(self, o)
  end
  function Pool:forward(x) return core[op](x, current(self)) end
  function Pool:extra_repr() return text(self.output_size) end
  layers[name] = Pool
end

for dims = 1, 3 do
  pool(("MaxPool%dd"):format(dims), ("max_pool%dd"):format(dims),
    "kernel_size, stride?, padding, dilation, return_indices, ceil_mode",
    {"padding", "dilation", "ceil_mode"})
  pool(("AvgPool%dd"):format(dims), ("avg_pool%dd"):format(dims),
    "kernel_size, stride?, padding, ceil_mode, count_include_pad"
      .. (dims > 1 and ", divisor_override" or ""),
    {"padding", "ceil_mode", "count_include_pad"})
  adaptive(("AdaptiveAvgPool%dd"):format(dims), ("adaptive_avg_pool%dd"):format(dims), dims,
    "output_size")
  adaptive(("AdaptiveMaxPool%dd"):format(dims), ("adaptive_max_pool%dd"):format(dims), dims,
    "output_size, return_indices")
end

-- MaxUnpool1d(kernel_size, {stride = kernel_size, padding = 0}): model(x, indices, output_size
-- or nil), the indices being those of MaxPool1d{..., return_indices = true}.
local function unpool(name, op)
  local bind = options.signature(name, "kernel_size, stride?, padding", op)
  local hold, current = follow "kernel_size, stride, padding"
  local Pool = Module:extend(name)
  function Pool:init(...)
    local o = bind(...)
    o.stride = o.stride or o.kernel_size
    hold(self, o)
  end
  function Pool:forward(x, indices, output_size)
    local o = current(self)
    return core[op](x, indices, {kernel_size = o.kernel_size, stride = o.stride,
      padding = o.padding, output_size = by_name(output_size)})
  end
  function Pool:extra_repr() return text(self.kernel_size) end
  layers[name] = Pool
end
for dims = 1, 3 do
  unpool(("MaxUnpool%dd"):format(dims), ("max_unpool%dd"):format(dims))
end

--- FractionalMaxPool2d(kernel_size, {output_size =, output_ratio =, return_indices = false,
--- _random_samples = drawn at each call}): output_size or output_ratio; Graham 2014.
local function fractional_pool(name, op)
  local bind = options.signature(name, [[kernel_size: size, output_size?: size,
    output_ratio?: number|numbers, return_indices: boolean = false, _random_samples?: tensor]])
  local hold, current = follow(
    "kernel_size, output_size, output_ratio, return_indices, _random_samples")
  local Pool = Module:extend(name)
  function Pool:init(...)
    local o = bind(...)
    if (o.output_size == nil) == (o.output_ratio == nil) then
      caller.raise("%s: wanted output_size or output_ratio, one of them", name)
    end
    self:register_buffer("_random_samples", o._random_samples)
    hold(self, o)
  end
  function Pool:forward(x) return functional[op](x, current(self)) end
  function Pool:extra_repr() return text(self.kernel_size) end
  layers[name] = Pool
end
fractional_pool("FractionalMaxPool2d", "fractional_max_pool2d")
fractional_pool("FractionalMaxPool3d", "fractional_max_pool3d")

-- LPPool1d(p, kernel_size, {stride = kernel_size, ceil_mode = false}).
local function power_pool(name, op)
  local bind = options.signature(name, [[norm_type: number, kernel_size: size, stride?: size,
    ceil_mode: boolean = false]])
  local hold, current = follow "norm_type, kernel_size, stride, ceil_mode"
  local Pool = Module:extend(name)
  Pool.holds_no_activations = true
  function Pool:init(...) hold(self, bind(...)) end
  function Pool:forward(x) return functional[op](x, current(self)) end
  function Pool:extra_repr()
    return ("norm_type = %g, kernel_size = %s"):format(self.norm_type, text(self.kernel_size))
  end
  layers[name] = Pool
end
power_pool("LPPool1d", "lp_pool1d")
power_pool("LPPool2d", "lp_pool2d")
power_pool("LPPool3d", "lp_pool3d")

return layers
