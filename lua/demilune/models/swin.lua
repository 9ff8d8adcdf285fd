-- Swin transformers with torchvision's names: attention within windows, which every second block
-- shifts by half a window. Images may have any size: a map is padded to whole windows.
-- Z. Liu, Y. Lin, Y. Cao, H. Hu, Y. Wei, Z. Zhang, S. Lin, B. Guo, "Swin transformer", 2021.

local core = require "demilune.core"
local nn = require "demilune.nn"
local options = require "demilune.options"
local layers = require "demilune.vision.layers"

local swin = {}

local WINDOW = 7

-- ---- windows ----

-- x (N, H, W, C) -> (N H W / size^2, size^2, C), the windows of an image in rows.
local function windows_of(x, size)
  local n, height, width, channels = table.unpack(x.shape)
  return x:reshape(n, height // size, size, width // size, size, channels)
    :permute(1, 2, 4, 3, 5, 6):reshape(-1, size * size, channels)
end

-- The inverse of windows_of.
local function image_of(windows, size, height, width)
  local channels = windows:size(-1)
  return windows:reshape(-1, height // size, width // size, size, size, channels)
    :permute(1, 2, 4, 3, 5, 6):reshape(-1, height, width, channels)
end

-- A shift brings what stood apart into one window. Rows of windows (windows, 1, size^2, size^2):
-- 0 where two pixels stood together, -100 where not, as torchvision has it.
local function apart(height, width, size, down, right, like)
  local how = {dtype = like.dtype, device = like.device}
  local function part(n, shift) -- 0, 1 or 2 along an axis
    local at = core.arange(1, n, how)
    return at:gt(n - size):to(like.dtype) + at:gt(n - shift):to(like.dtype)
  end
  local parts = part(height, down):unsqueeze(2) * 3 + part(width, right)
  parts = windows_of(parts:reshape(1, height, width, 1), size):squeeze(-1)
  return (parts:unsqueeze(2):ne(parts:unsqueeze(3)):to(like.dtype) * -100):unsqueeze(2)
end

--- Attention within windows: x (N, H, W, dim) -> the same shape.
local ShiftedWindowAttention = nn.Module:extend "ShiftedWindowAttention"

-- For each pair of pixels of a window the row, from 0 as files hold it, of the table of biases:
-- there is one for each difference of rows and of columns.
local function pair_index()
  local at = core.arange(0, WINDOW - 1, {dtype = "int64"})
  local row = at:repeat_interleave(WINDOW)
  local column = at:tile(WINDOW)
  local function differences(t) return t:unsqueeze(2) - t:unsqueeze(1) + WINDOW - 1 end
  return (differences(row) * (2 * WINDOW - 1) + differences(column)):flatten():clone()
end

function ShiftedWindowAttention:init(dim, num_heads, shift, o)
  self.num_heads, self.shift = num_heads, shift
  self.attention_dropout, self.dropout = o.attention_dropout, o.dropout
  self.qkv = nn.Linear(dim, 3 * dim)
  self.proj = nn.Linear(dim, dim)
  self.relative_position_bias_table = nn.Parameter(core.empty((2 * WINDOW - 1) * (2 * WINDOW - 1),
    num_heads))
  nn.init.trunc_normal_(self.relative_position_bias_table, 0, 0.02)
  self:register_buffer("relative_position_index", pair_index())
end

-- x (windows, size^2, dim) -> the same shape; mask: (windows of an image, 1, size^2, size^2).
function ShiftedWindowAttention:attend(x, mask)
  local n, length, dim = table.unpack(x.shape)
  local heads = self.num_heads
  local qkv = self.qkv(x):reshape(n, length, 3, heads, dim // heads):permute(3, 1, 4, 2, 5)
  local scores = (qkv[1] * (dim // heads) ^ -0.5):matmul(qkv[2]:transpose(-2, -1))
  local bias = self.relative_position_bias_table
    :index_select(1, self.relative_position_index + 1)
  scores = scores + bias:reshape(length, length, heads):permute(3, 1, 2):unsqueeze(1)
  if mask then
    scores = (scores:reshape(-1, mask:size(1), heads, length, length) + mask)
      :reshape(n, heads, length, length)
  end
  local shares = core.dropout(scores:softmax(-1),
    {p = self.attention_dropout, training = self.training})
  local y = self.proj(shares:matmul(qkv[3]):transpose(2, 3):reshape(n, length, dim))
  return core.dropout(y, {p = self.dropout, training = self.training})
end

function ShiftedWindowAttention:forward(x)
  local height, width = x:size(2), x:size(3)
  local below, beside = -height % WINDOW, -width % WINDOW
  if below + beside > 0 then x = core.pad(x, {0, 0, 0, beside, 0, below}) end
  local h, w = height + below, width + beside
  local down = h > WINDOW and self.shift or 0 -- one window is not shifted
  local right = w > WINDOW and self.shift or 0
  local shifted = down + right > 0
  if shifted then x = x:roll({-down, -right}, {dims = {2, 3}}) end
  local mask = shifted and apart(h, w, WINDOW, down, right, x)
  x = image_of(self:attend(windows_of(x, WINDOW), mask), WINDOW, h, w)
  if shifted then x = x:roll({down, right}, {dims = {2, 3}}) end
  if below + beside > 0 then x = x:narrow(2, 1, height):narrow(3, 1, width):contiguous() end
  return x
end

-- ---- blocks ----

--- x (N, H, W, dim) -> the same shape.
local Block = nn.Module:extend "SwinTransformerBlock"

function Block:init(dim, num_heads, shift, drop, o)
  self.norm1 = nn.LayerNorm(dim)
  self.attn = ShiftedWindowAttention(dim, num_heads, shift, o)
  self.stochastic_depth = layers.StochasticDepth(drop)
  self.norm2 = nn.LayerNorm(dim)
  self.mlp = layers.MLP(dim, {4 * dim, dim}, {activation_layer = nn.GELU, dropout = o.dropout})
end

function Block:forward(x)
  x = x + self.stochastic_depth(self.attn(self.norm1(x)))
  return x + self.stochastic_depth(self.mlp(self.norm2(x)))
end

--- Four pixels become one: x (N, H, W, dim) -> (N, H / 2, W / 2, 2 dim), odd sides rounded up.
local PatchMerging = nn.Module:extend "PatchMerging"

function PatchMerging:init(dim)
  self.reduction = nn.Linear(4 * dim, 2 * dim, {bias = false})
  self.norm = nn.LayerNorm(4 * dim)
end

-- The pixels of a square stand in the order of columns.
function PatchMerging:forward(x)
  local n, height, width, dim = table.unpack(x.shape)
  if height % 2 + width % 2 > 0 then
    x = core.pad(x, {0, 0, 0, width % 2, 0, height % 2})
    height, width = x:size(2), x:size(3)
  end
  x = x:reshape(n, height // 2, 2, width // 2, 2, dim):permute(1, 2, 4, 5, 3, 6)
  return self.reduction(self.norm(x:reshape(n, height // 2, width // 2, 4 * dim)))
end

-- ---- SwinTransformer ----

--- x (N, 3, H, W) -> scores (N, num_classes).
local SwinTransformer = nn.Module:extend "SwinTransformer"

local function start(module)
  if module.class ~= "Linear" then return end
  nn.init.trunc_normal_(module.weight, 0, 0.02)
  if module.bias then nn.init.zeros_(module.bias) end
end

-- how: width and heads of the first stage, which double from stage to stage, then how many
-- blocks each has. Later blocks are left out more often: in proportion to those before them.
function SwinTransformer:init(how, o)
  local width, heads, total, before = how.width, how.heads, -1, 0
  for _, n in ipairs(how) do total = total + n end
  self.features = nn.Sequential{nn.Sequential{nn.Conv2d(3, width, 4, {stride = 4}),
    layers.Permute{1, 3, 4, 2}, nn.LayerNorm(width)}}
  for i, n in ipairs(how) do
    if i > 1 then
      self.features:append(PatchMerging(width))
      width, heads = 2 * width, 2 * heads
    end
    local stage = nn.Sequential{}
    for k = 1, n do
      stage:append(Block(width, heads, k % 2 == 0 and WINDOW // 2 or 0,
        o.stochastic_depth_prob * before / total, o))
      before = before + 1
    end
    self.features:append(stage)
  end
  self.norm = nn.LayerNorm(width)
  self.permute = layers.Permute{1, 4, 2, 3}
  self.avgpool = nn.AdaptiveAvgPool2d(1)
  self.flatten = nn.Flatten()
  self.head = nn.Linear(width, o.num_classes)
  self:apply(start)
end

function SwinTransformer:forward(x)
  return self.head(self.flatten(self.avgpool(self.permute(self.norm(self.features(x))))))
end

-- swin_t{num_classes = 1000, dropout = 0, attention_dropout = 0, stochastic_depth_prob =} -> a
-- module of images (N,3,H,W) that gives (N, num_classes); so swin_s and swin_b.
-- stochastic_depth_prob: how often the last block is left out.
for name, how in pairs{
  swin_t = {width = 96, heads = 3, drop = 0.2, 2, 2, 6, 2},
  swin_s = {width = 96, heads = 3, drop = 0.3, 2, 2, 18, 2},
  swin_b = {width = 128, heads = 4, drop = 0.5, 2, 2, 18, 2},
} do
  local bind = options.signature(name, ([[*, num_classes: integer = 1000,
    dropout: number = 0.0, attention_dropout: number = 0.0,
    stochastic_depth_prob: number = %g]]):format(how.drop))
  swin[name] = function(...) return SwinTransformer(how, bind(...)) end
end

return swin
