-- Vision transformers with torchvision's names and initial weights. A. Dosovitskiy et al. 2020;
-- the small one is H. Touvron et al.'s (2020).

local core = require "demilune.core"
local caller = require "demilune.caller"
local nn = require "demilune.nn"
local options = require "demilune.options"
local blocks = require "demilune.models.blocks"
local layers = require "demilune.vision.layers"

local vit = {}

-- ---- one block ----

--- Two products with GELU between them: x (..., dim) -> the same shape.
local MLPBlock = layers.MLP:extend "MLPBlock"

--- One block: x (N, patches + 1, hidden_dim) -> the same shape.
local Block = nn.Module:extend "EncoderBlock"
Block.holds_no_activations = true

local function norm(dim) return nn.LayerNorm(dim, {eps = 1e-6}) end

function Block:init(o)
  local dim = o.hidden_dim
  self.ln_1 = norm(dim)
  self.self_attention = nn.MultiheadAttention(dim, o.num_heads,
    {dropout = o.attention_dropout, batch_first = true})
  self.dropout = nn.Dropout(o.dropout)
  self.ln_2 = norm(dim)
  self.mlp = MLPBlock(dim, {o.mlp_dim, dim},
    {activation_layer = nn.GELU, dropout = o.dropout})
  for _, layer in ipairs{self.mlp[1], self.mlp[4]} do
    nn.init.xavier_uniform_(layer.weight)
    nn.init.normal_(layer.bias, 0, 1e-6)
  end
end

function Block:run(stream)
  local function attend(y)
    return self.dropout((self.self_attention(y, y, y, {need_weights = false})))
  end
  stream:add(self.ln_1, attend, self.self_attention, self.dropout)
  stream:add(self.ln_2, self.mlp)
end

Block.forward = blocks.forward

-- ---- the encoder ----

--- Positions are added, then all blocks: x (N, patches + 1, hidden_dim) -> the same shape.
local Encoder = nn.Module:extend "Encoder"

function Encoder:init(length, o)
  self.pos_embedding = nn.Parameter(core.empty(1, length, o.hidden_dim))
  nn.init.normal_(self.pos_embedding, 0, 0.02)
  self.dropout = nn.Dropout(o.dropout)
  self.layers = nn.Sequential()
  for i = 1, o.num_layers do -- names count from 0, as torchvision's
    self.layers["encoder_layer_" .. i - 1] = Block(o)
  end
  self.ln = norm(o.hidden_dim)
end

function Encoder:forward(x)
  x = self.dropout(x + self.pos_embedding)
  local all = self.layers
  if all.forward ~= nn.Sequential.forward or all:is_observed() then
    return self.ln(all(x))
  end
  local list = {}
  for _, layer in all:named_children() do list[#list + 1] = layer end
  return blocks.stream(list, Block, x):norm(self.ln)
end

-- ---- VisionTransformer ----

--- x (N, 3, image_size, image_size) -> scores (N, num_classes), from the class token.
local VisionTransformer = nn.Module:extend "VisionTransformer"

function VisionTransformer:init(o)
  local dim, patch = o.hidden_dim, o.patch_size
  if o.image_size % patch ~= 0 then
    caller.raise("VisionTransformer: patches of %d do not divide images of %d", patch,
      o.image_size)
  end
  self.image_size = o.image_size
  self.class_token = nn.Parameter(core.zeros(1, 1, dim))
  self.conv_proj = nn.Conv2d(3, dim, patch, {stride = patch})
  nn.init.trunc_normal_(self.conv_proj.weight, 0, 1 / math.sqrt(3 * patch * patch))
  nn.init.zeros_(self.conv_proj.bias)
  local side = o.image_size // patch
  self.encoder = Encoder(side * side + 1, o)
  self.heads = nn.Sequential()
  self.heads.head = nn.Linear(dim, o.num_classes)
  nn.init.zeros_(self.heads.head.weight)
  nn.init.zeros_(self.heads.head.bias)
end

function VisionTransformer:forward(x)
  local size = self.image_size
  if x:dim() ~= 4 or x:size(3) ~= size or x:size(4) ~= size then
    caller.raise("VisionTransformer: images are %s, wanted {N, 3, %d, %d}",
      tostring(x.shape), size, size)
  end
  x = self.conv_proj(x):flatten(3):transpose(2, 3) -- (N, patches, dim)
  local class = self.class_token:expand(x:size(1), -1, -1)
  x = self.encoder(core.cat({class, x}, {dim = 2}))
  return self.heads(x:select(2, 1))
end

--- Takes torchvision's first files too, which name the two products of a block's MLP.
function VisionTransformer.known_names(_, state)
  local own = {}
  for name, t in pairs(state) do
    if type(name) == "string" then
      name = name:gsub("%.mlp%.linear_1%.", ".mlp.0."):gsub("%.mlp%.linear_2%.", ".mlp.3.")
    end
    own[name] = t
  end
  return own
end

-- A builder: NAME{image_size = 224, patch_size = 16, num_classes = 1000, dropout = 0,
-- attention_dropout = 0, num_layers, num_heads, hidden_dim, mlp_dim} -> a module of
-- images (N, 3, image_size, image_size) that gives (N, num_classes).
local function builder(name, num_layers, num_heads, hidden_dim, mlp_dim)
  local bind = options.signature(name, ([[*, image_size: integer = 224,
    patch_size: integer = 16, num_classes: integer = 1000, dropout: number = 0,
    attention_dropout: number = 0, num_layers: integer = %d, num_heads: integer = %d,
    hidden_dim: integer = %d, mlp_dim: integer = %d]]):format(num_layers, num_heads, hidden_dim,
    mlp_dim))
  vit[name] = function(...) return VisionTransformer(bind(...)) end
end
builder("vit_s_16", 12, 6, 384, 1536)
builder("vit_b_16", 12, 12, 768, 3072)

return vit
