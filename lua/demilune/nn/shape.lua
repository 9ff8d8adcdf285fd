-- Layers that rearrange elements: padding, unfold and fold, upsampling, pixel and channel
-- shuffles, unflatten.

local core = require "demilune.core"
local caller = require "demilune.caller"
local follow = require "demilune.nn.follow"
local options = require "demilune.options"
local Module = require "demilune.nn.module"

local layers = {}

-- ReflectionPad2d(padding): a number for all sides, or {left, right, top, bottom, ...}.
local function pad(name, dims, mode, value)
  local bind = options.signature(name, "padding: size"
    .. (mode == "constant" and not value and ", value: number" or ""))
  local Pad = Module:extend(name)
  Pad.holds_no_activations = true
  function Pad:init(...)
    local o = bind(...)
    local padding = o.padding
    local list = padding
    if type(padding) == "number" then
      list = {}
      for i = 1, 2 * dims do list[i] = padding end
    elseif type(padding) ~= "table" or #padding ~= 2 * dims then
      caller.raise("%s: wanted a number or a table of %d, two a dim, the last dim first", name,
        2 * dims)
    end
    self.padding, self.value = list, value or o.value
    self._opts = {mode = mode, value = mode == "constant" and self.value or nil}
  end
  function Pad:forward(x)
    local o = self._opts
    if o.value ~= self.value and mode == "constant" then o = {mode = mode, value = self.value} end
    return core.pad(x, self.padding, o)
  end
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

--- Unfold(kernel_size, {dilation =, padding =, stride =})
local Unfold = Module:extend "Unfold"
Unfold.holds_no_activations = true
local UNFOLD = "kernel_size, dilation, padding, stride"
local bind_unfold = options.signature("Unfold", UNFOLD, "unfold")
local hold_unfold, unfold_options = follow(UNFOLD)
function Unfold:init(...) hold_unfold(self, bind_unfold(...)) end
function Unfold:forward(x) return core.unfold(x, unfold_options(self)) end
layers.Unfold = Unfold

--- Fold(output_size, kernel_size, {dilation =, padding =, stride =})
local Fold = Module:extend "Fold"
Fold.holds_no_activations = true
local FOLD = "output_size, kernel_size, dilation, padding, stride"
local bind_fold = options.signature("Fold", FOLD, "fold")
local hold_fold, fold_options = follow(FOLD)
function Fold:init(...) hold_fold(self, bind_fold(...)) end
function Fold:forward(x) return core.fold(x, fold_options(self)) end
layers.Fold = Fold

-- ---- other sizes ----

--- Upsample{size =, or scale_factor =, mode = "nearest", align_corners = false}
local Upsample = Module:extend "Upsample"
Upsample.holds_no_activations = true
local UPSAMPLE = "size?, scale_factor, mode, align_corners"
local bind_upsample = options.signature("Upsample", UPSAMPLE, "interpolate")
local hold_upsample, upsample_options = follow(UPSAMPLE)
function Upsample:init(...)
  local o = bind_upsample(...)
  if (o.size == nil) == (o.scale_factor == nil) then
    caller.raise("Upsample: wanted size or scale_factor, one of them")
  end
  hold_upsample(self, o)
end
function Upsample:forward(x) return core.interpolate(x, upsample_options(self)) end
function Upsample:extra_repr()
  local o = upsample_options(self)
  local size = type(o.size) == "table" and "{" .. table.concat(o.size, ", ") .. "}" or o.size
  return ("%s = %s, mode = %s"):format(size and "size" or "scale_factor",
    tostring(size or o.scale_factor), o.mode)
end
layers.Upsample = Upsample

-- UpsamplingNearest2d{size =, or scale_factor =}; UpsamplingBilinear2d, which aligns corners.
local function upsampling(name, mode, align_corners)
  local bind = options.signature(name, "size?, scale_factor", "interpolate")
  local Class = Upsample:extend(name)
  function Class:init(...)
    local o = bind(...)
    o.mode, o.align_corners = mode, align_corners
    Upsample.init(self, o)
  end
  layers[name] = Class
end
upsampling("UpsamplingNearest2d", "nearest", false)
upsampling("UpsamplingBilinear2d", "bilinear", true)

-- PixelShuffle(r): (N, C r^2, H, W) -> (N, C, H r, W r); PixelUnshuffle(r): the inverse.
-- W. Shi et al. 2016.
-- ChannelShuffle(groups): the channels of all groups taken in turn. X. Zhang et al. 2017.
local function shuffle(name, op, option)
  local bind = options.signature(name, option, op)
  local Shuffle = Module:extend(name)
  Shuffle.holds_no_activations = true
  function Shuffle:init(...) self[option] = bind(...)[option] end
  function Shuffle:forward(x) return core[op](x, self[option]) end
  function Shuffle:extra_repr() return tostring(self[option]) end
  layers[name] = Shuffle
end
shuffle("PixelShuffle", "pixel_shuffle", "upscale_factor")
shuffle("PixelUnshuffle", "pixel_unshuffle", "downscale_factor")
shuffle("ChannelShuffle", "channel_shuffle", "groups")

--- Unflatten(dim, {sizes}): one dim as several; one size may be -1.
local Unflatten = Module:extend "Unflatten"
Unflatten.holds_no_activations = true
local bind_unflatten = options.signature("Unflatten", "dim: integer, unflattened_size: list")
function Unflatten:init(...)
  local o = bind_unflatten(...)
  if o.dim == 0 then caller.raise("Unflatten: dims count from 1, or from the end") end
  self.dim, self.unflattened_size = o.dim, {table.unpack(o.unflattened_size)}
end
function Unflatten:forward(x) return core.unflatten(x, self.dim, self.unflattened_size) end
function Unflatten:extra_repr()
  return ("%d, {%s}"):format(self.dim, table.concat(self.unflattened_size, ", "))
end
layers.Unflatten = Unflatten

return layers
