-- Lazy modules: layers that learn the size of their input from their first call, or from the
-- state_dict that is loaded. They make their tensors then, and become the plain layer. Until then
-- _later holds the arguments that they were made with; nn/module.lua asks for it where tensors
-- are wanted.

local core = require "demilune.core"
local caller = require "demilune.caller"
local check_input = require "demilune.nn.input"
local options = require "demilune.options"

local layers = {}

-- Makes the tensors for an input of n features, and the module one of the class `plain`.
local function become(self, plain, size_name, n)
  local given = {[size_name] = n}
  for key, value in pairs(self._later) do given[key] = value end
  local made = plain(given) -- where it raises, the module stays lazy
  rawset(self, "_later", nil)
  setmetatable(self, plain)
  for _, field in ipairs(made._fields) do
    local value = rawget(made, field)
    if core.is_tensor(value) then core.keep(value) end
    self[field], self._buffers[field] = value, made._buffers[field]
  end
end

-- Adds the lazy class of `plain`. size_name: its argument that is found out; text: the others, with
-- PyTorch's names; op: the op whose options they are. input_size(self, x) gives the size of an
-- input, and saved_size(shape, given) that in a state_dict, by the shape of the first of `keys`
-- that there is.
local function lazy(plain, size_name, text, op, input_size, keys, saved_size)
  local Lazy = plain:extend("Lazy" .. plain.class)
  local bind = options.signature(Lazy.class, text, op)
  layers[Lazy.class] = Lazy

  function Lazy:init(...)
    local given = bind(...)
    given.device = given.device or core.get_default_device()
    given.dtype = given.dtype or core.get_default_dtype()
    rawset(self, "_later", given)
  end

  function Lazy:forward(x, ...)
    become(self, plain, size_name, input_size(self, x))
    return self:forward(x, ...)
  end

  function Lazy:before_load(state, prefix)
    for _, key in ipairs(keys) do
      local t = state[prefix .. key]
      if core.is_tensor(t) and t:dim() > 0 then
        return become(self, plain, size_name, saved_size(t, self._later))
      end
    end
  end

  --- There is nothing to fill before the first call.
  function Lazy.reset_parameters() end

  function Lazy:extra_repr()
    local out = self._later.out_features or self._later.out_channels
    return out and "? -> " .. out or "?"
  end
end

-- ---- linear ----

lazy(require("demilune.nn.linear").Linear, "in_features",
  "out_features: integer, bias: boolean = true, device?: device, dtype?: dtype", "linear",
  function(self, x)
    check_input(self.class, x)
    return x:size(-1)
  end, {"weight"}, function(t) return t:size(-1) end)

-- ---- convolutions and norms, of `dims` dims behind the channels ----

-- The size of the channels of x (N, C, ...) or (C, ...).
local function channels_of(dims)
  return function(self, x)
    check_input(self.class, x)
    local rank = x:dim()
    if rank ~= dims + 1 and rank ~= dims + 2 then
      caller.raise("%s: x is %s, wanted %d or %d dims", self.class, tostring(x.shape), dims + 1,
        dims + 2)
    end
    return x:size(rank - dims)
  end
end

-- Batch norms take (N, C, ...) alone, the one of one dim also (N, C).
local function batch_channels(dims)
  return function(self, x)
    check_input(self.class, x)
    local rank = x:dim()
    if rank ~= dims + 2 and not (dims == 1 and rank == 2) then
      caller.raise("%s: x is %s, wanted %d dims", self.class, tostring(x.shape), dims + 2)
    end
    return x:size(2)
  end
end

local NORM = [[eps, momentum: number|'cumulative' = 0.1, affine: boolean = true,
  track_running_stats: boolean = true, device?: device, dtype?: dtype, *,
  bias: boolean = true]]

local function first_size(t) return t:size(1) end

local conv, norm = require "demilune.nn.conv", require "demilune.nn.norm"
for dims = 1, 3 do
  local of = channels_of(dims)
  lazy(conv[("Conv%dd"):format(dims)], "in_channels", [[out_channels: integer, kernel_size: size,
    stride, padding, dilation, groups, bias: boolean = true,
    padding_mode: 'zeros'|'reflect'|'replicate'|'circular' = 'zeros', device?: device,
    dtype?: dtype]], ("conv%dd"):format(dims), of, {"weight"},
    function(t, given) return t:size(2) * given.groups end)
  lazy(conv[("ConvTranspose%dd"):format(dims)], "in_channels", [[out_channels: integer,
    kernel_size: size, stride, padding, output_padding, groups, bias: boolean = true, dilation,
    padding_mode: 'zeros' = 'zeros', device?: device, dtype?: dtype]],
    ("conv_transpose%dd"):format(dims), of, {"weight"}, first_size)
  local keys = {"weight", "running_mean"}
  lazy(norm[("BatchNorm%dd"):format(dims)], "num_features", NORM, "batch_norm",
    batch_channels(dims), keys, first_size)
  lazy(norm[("InstanceNorm%dd"):format(dims)], "num_features",
    (NORM:gsub("momentum[^,]*", "momentum")), "instance_norm", of, keys, first_size)
end

return layers
