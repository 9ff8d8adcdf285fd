-- The common parts of several families: widths and initial weights of convolutional networks,
-- the residual stream of transformers.

local core = require "demilune.core"
local Module = require "demilune.nn.module"
local nn = require "demilune.nn"

local blocks = {}

local free = core.methods.free

-- ---- the residual stream of pre-norm transformers ----

-- What its blocks add to: x (B, T, dim), and the last branch's output, which is added together
-- with the norm behind it, one op. `own` says that nobody else has the handle of `delta`.
---@class demilune.Stream
---@field x Tensor
---@field delta? Tensor
---@field own? boolean
local Stream = {}
Stream.__index = Stream

-- Frees the handles that nobody else has, for the collector would let them wait.
local function added(self, x)
  local delta = self.delta
  if self.own and not rawequal(delta, x) and not rawequal(delta, self.x) then free(delta) end
  self.x, self.delta = x, nil
end

--- Adds the last branch's output, and returns the sum: (B, T, dim).
function Stream:sum()
  if self.delta then added(self, self.x + self.delta) end
  return self.x
end

--- Returns norm(self:sum()): (B, T, dim). A LayerNorm without hooks is one op with the sum.
function Stream:norm(norm)
  if not self.delta or norm:is_observed() or norm.forward ~= nn.LayerNorm.forward then
    return norm(self:sum())
  end
  local x, normed = core.add_layer_norm(self.x, self.delta, norm.normalized_shape,
    {weight = norm.weight, bias = norm.bias, eps = norm.eps})
  added(self, x)
  return normed
end

--- Adds branch(norm(x)) to the stream. `branch` is a module, or a function that calls those which
--- follow.
function Stream:add(norm, branch, ...)
  local normed = self:norm(norm)
  local y = branch(normed)
  self.own = Module.hold_nothing(norm, ... or branch, select(2, ...))
  if self.own and not rawequal(normed, self.x) and not rawequal(normed, y) then free(normed) end
  self.delta = y
end

--- Runs blocks, each a module of the class Block, over x (B, T, dim), and returns their stream.
--- Block:run(stream, ...) does one block; where a hook, or another forward, would see its call, it
--- is called as it is. more(i), if given, gives block i's further arguments.
function blocks.stream(list, Block, x, more)
  local stream = setmetatable({x = x}, Stream)
  more = more or function() end
  for i, block in ipairs(list) do
    if block.forward == Block.forward and not block:is_observed() then
      block:run(stream, more(i))
    else
      stream.x = block(stream:sum(), more(i))
    end
  end
  return stream
end

--- What Block:forward(x, ...) is by Block:run.
function blocks.forward(self, x, ...)
  local stream = setmetatable({x = x}, Stream)
  self:run(stream, ...)
  return stream:sum()
end

-- ---- convolutional networks ----

-- The multiple of 8 next to a number of channels, not less than 9/10 of it: how
-- M. Sandler et al. 2018 round widths.
function blocks.round_width(width)
  local rounded = math.max(8, math.floor(width + 4) // 8 * 8)
  return rounded < 0.9 * width and rounded + 8 or rounded
end

-- torchvision's start of convolutions: K. He et al. 2015, by their outputs; no bias.
function blocks.start_conv(module)
  if module.class ~= "Conv2d" then return end
  nn.init.kaiming_normal_(module.weight, {mode = "fan_out", nonlinearity = "relu"})
  if module.bias then nn.init.zeros_(module.bias) end
end

-- torchvision's start of VGG's and MobileNetV2's layers.
function blocks.start(module)
  blocks.start_conv(module)
  if module.class == "Linear" then
    nn.init.normal_(module.weight, 0, 0.01)
    nn.init.zeros_(module.bias)
  end
end

return blocks
