-- Layers that rearrange elements: padding, unfold and fold, upsampling, pixel and channel
-- shuffles, unflatten.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local Module = require "demilune.nn.module"

local layers = {}

-- ReflectionPad2d(padding): a number for all sides, or {left, right, top, bottom, ...}.
local function pad(name, dims, mode, value)
  local Pad = Module:extend(name)
  Pad.holds_no_activations = true
  function Pad:init(padding, given)
    local list = padding
    if type(padding) == "number" then
      list = {}
      for i = 1, 2 * dims do list[i] = padding end
    elseif type(padding) ~= "table" or #padding ~= 2 * dims then
      caller.raise("%s: wanted a number or a table of %d, two a dim, the last dim first", name,
        2 * dims)
    end
    self.padding, self.value = list, value or given
    if mode == "constant" and type(self.value) ~= "number" then
      caller.raise("%s: value is %s, wanted a number", name, tostring(self.value))
    end
    self._opts = {mode = mode, value = mode == "constant" and self.value or nil}
  end
  function Pad:forward(x) return core.pad(x, self.padding, self._opts) end
  function Pad:extra_repr()
    local sides = "{" .. table.concat(self.padding, ", ") .. "}"
    return mode == "constant" and not value and sides .. ", value = " .. self.value or sides
  end
  layers[name] = Pad
end
for dims = 1, 3 do
  pad(("ConstantPad%dd"):format(dims), dims, "constant")
  pad(("ZeroPad%dd"):format(dims), dims, "constant", 0)
  pad(("ReflectionPad%dd"):format(dims), dims, "reflect")
  pad(("ReplicationPad%dd"):format(dims), dims, "replicate")
  pad(("CircularPad%dd"):format(dims), dims, "circular")
end

-- ---- columns ----

local columns = options.of_op "unfold" -- fold has the same

--- Unfold(kernel_size, {dilation =, padding =, stride =})
local Unfold = Module:extend "Unfold"
Unfold.holds_no_activations = true
function Unfold:init(kernel_size, opts)
  self._opts = options.read("Unfold", opts, columns())
  self._opts.kernel_size = kernel_size
end
function Unfold:forward(x) return core.unfold(x, self._opts) end
layers.Unfold = Unfold

--- Fold(output_size, kernel_size, {dilation =, padding =, stride =})
local Fold = Module:extend "Fold"
Fold.holds_no_activations = true
function Fold:init(output_size, kernel_size, opts)
  self._opts = options.read("Fold", opts, columns())
  self._opts.output_size, self._opts.kernel_size = output_size, kernel_size
end
function Fold:forward(x) return core.fold(x, self._opts) end
layers.Fold = Fold

-- ---- other sizes ----

--- Upsample{size =, or scale_factor =, mode = "nearest", align_corners = false}
local Upsample = Module:extend "Upsample"
Upsample.holds_no_activations = true
function Upsample:init(opts)
  self._opts = options.read("Upsample", opts, {size = options.NONE, scale_factor = options.NONE,
    mode = "nearest", align_corners = false})
  if (self._opts.size == nil) == (self._opts.scale_factor == nil) then
    caller.raise("Upsample: wanted size or scale_factor, one of them")
  end
end
function Upsample:forward(x) return core.interpolate(x, self._opts) end
function Upsample:extra_repr()
  local o = self._opts
  local size = type(o.size) == "table" and "{" .. table.concat(o.size, ", ") .. "}" or o.size
  return ("%s = %s, mode = %s"):format(size and "size" or "scale_factor",
    tostring(size or o.scale_factor), o.mode)
end
layers.Upsample = Upsample

-- UpsamplingNearest2d{size =, or scale_factor =}; UpsamplingBilinear2d, which aligns corners.
local function upsampling(name, mode, align_corners)
  local Class = Upsample:extend(name)
  function Class:init(opts)
    local o = options.read(name, opts, {size = options.NONE, scale_factor = options.NONE})
    o.mode, o.align_corners = mode, align_corners
    Upsample.init(self, o)
  end
  layers[name] = Class
end
upsampling("UpsamplingNearest2d", "nearest", false)
upsampling("UpsamplingBilinear2d", "bilinear", true)

-- PixelShuffle(r): (N, C r^2, H, W) -> (N, C, H r, W r); PixelUnshuffle(r): the inverse.
-- W. Shi et al. 2016.
local function shuffle(name, op)
  local Shuffle = Module:extend(name)
  Shuffle.holds_no_activations = true
  function Shuffle:init(factor) self.factor = factor end
  function Shuffle:forward(x) return core[op](x, self.factor) end
  function Shuffle:extra_repr() return tostring(self.factor) end
  layers[name] = Shuffle
end
shuffle("PixelShuffle", "pixel_shuffle")
shuffle("PixelUnshuffle", "pixel_unshuffle")

--- ChannelShuffle(groups): the channels of all groups taken in turn. X. Zhang et al. 2017.
local ChannelShuffle = Module:extend "ChannelShuffle"
ChannelShuffle.holds_no_activations = true
function ChannelShuffle:init(groups) self.groups = groups end
function ChannelShuffle:forward(x) return core.channel_shuffle(x, self.groups) end
function ChannelShuffle:extra_repr() return tostring(self.groups) end
layers.ChannelShuffle = ChannelShuffle

--- Unflatten(dim, {sizes}): one dim as several; one size may be -1.
local Unflatten = Module:extend "Unflatten"
Unflatten.holds_no_activations = true
function Unflatten:init(dim, unflattened_size)
  if math.type(dim) ~= "integer" or dim == 0 or type(unflattened_size) ~= "table" then
    caller.raise("Unflatten: wanted a dim, from 1 or from the end, and a table of sizes")
  end
  self.dim, self.unflattened_size = dim, {table.unpack(unflattened_size)}
end
function Unflatten:forward(x) return core.unflatten(x, self.dim, self.unflattened_size) end
function Unflatten:extra_repr()
  return ("%d, {%s}"):format(self.dim, table.concat(self.unflattened_size, ", "))
end
layers.Unflatten = Unflatten

return layers
