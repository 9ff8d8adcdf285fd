-- Linear, Bilinear, Embedding and EmbeddingBag, Flatten, the dropouts.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local fill = require "demilune.nn.fill"
local functional = require "demilune.nn.functional"
local in_place = require "demilune.nn.in_place"
local Module = require "demilune.nn.module"

local layers = {}

--- x (..., I) -> y (..., O) = x W^T + b, W (O, I); or activation(y): "relu", "gelu" or
--- "gelu_tanh", computed with the product where a device can, and rounded once.
local Linear = Module:extend "Linear"
Linear.holds_no_activations = true

local bind_linear = options.signature("Linear", [[in_features: integer, out_features: integer,
  bias: boolean = true, device?: device, dtype?: dtype, *, activation]], "linear")

function Linear:init(...)
  local o = bind_linear(...)
  self.activation = o.activation ~= "none" and o.activation
  self.in_features, self.out_features = o.in_features, o.out_features
  local how = {dtype = o.dtype, device = o.device}
  self.weight = core.parameter(core.empty(o.out_features, o.in_features, how))
  if o.bias then self.bias = core.parameter(core.empty(o.out_features, how)) end
  self:reset_parameters()
end

-- PyTorch's: both uniform within 1 / sqrt(fan in).
function Linear:reset_parameters()
  local bound = self.in_features > 0 and 1 / math.sqrt(self.in_features) or 0
  fill(self.weight, "uniform_", -bound, bound)
  if self.bias then fill(self.bias, "uniform_", -bound, bound) end
end

-- activation: for this call, in place of the module's own.
local linear = core.linear
function Linear:forward(x, activation)
  return linear(x, self.weight, self.bias, activation or self.activation or nil)
end

-- Whether relu(self(x)) may be computed as one op. The result is the same, since relu of the
-- rounded result is the rounded relu; but hooks and observers must see the layer's own
-- output, and a class with another forward is not known to compute a linear map.
local forward, observer = Linear.forward, Module._observer
function Linear:can_fuse_relu(name)
  return name ~= "relu6" and self.forward == forward and not self.activation and not self._has_hooks
    and not observer[1]
end

--- relu(layer(x)), as one op where that is possible.
function Linear.then_relu(layer, x)
  if getmetatable(layer) == Linear and layer:can_fuse_relu() then return layer(x, "relu") end
  return core.relu(layer(x))
end

function Linear:extra_repr()
  return ("%d -> %d%s%s"):format(self.in_features, self.out_features,
    self.bias and "" or ", bias = false",
    self.activation and ", activation = " .. self.activation or "")
end

--- x1 (..., I), x2 (..., J) -> y (..., O): x1 W_o x2 + b_o, W (O, I, J).
local Bilinear = Module:extend "Bilinear"
Bilinear.holds_no_activations = true

local bind_bilinear = options.signature("Bilinear", [[in1_features: integer,
  in2_features: integer, out_features: integer, bias: boolean = true, device?: device,
  dtype?: dtype]])

function Bilinear:init(...)
  local o = bind_bilinear(...)
  local how = {dtype = o.dtype, device = o.device}
  self.in1_features, self.in2_features = o.in1_features, o.in2_features
  self.out_features = o.out_features
  self.weight = core.parameter(core.empty(o.out_features, o.in1_features, o.in2_features, how))
  if o.bias then self.bias = core.parameter(core.empty(o.out_features, how)) end
  self:reset_parameters()
end

-- PyTorch's: both uniform within 1 / sqrt(in1_features).
function Bilinear:reset_parameters()
  local bound = self.in1_features > 0 and 1 / math.sqrt(self.in1_features) or 0
  fill(self.weight, "uniform_", -bound, bound)
  if self.bias then fill(self.bias, "uniform_", -bound, bound) end
end

function Bilinear:forward(x1, x2) return core.bilinear(x1, x2, self.weight, self.bias) end

function Bilinear:extra_repr()
  return ("%d, %d -> %d%s"):format(self.in1_features, self.in2_features, self.out_features,
    self.bias and "" or ", bias = false")
end

--- ids (...) -> rows (..., D) of weight (N, D); ids count from 1. max_norm: rows that are
--- looked up are first shortened, in place, to that norm of order norm_type.
--- scale_grad_by_freq: a row's gradient is divided by how often it is looked up.
local Embedding = Module:extend "Embedding"
Embedding.holds_no_activations = true

local bind_embedding = options.signature("Embedding", [[num_embeddings: integer,
  embedding_dim: integer, padding_idx?: integer, max_norm?: number, norm_type: number = 2.0,
  scale_grad_by_freq: boolean = false, *, device?: device, dtype?: dtype]])

function Embedding:init(...)
  local o = bind_embedding(...)
  self.num_embeddings, self.embedding_dim = o.num_embeddings, o.embedding_dim
  self.padding_idx, self.max_norm, self.norm_type = o.padding_idx, o.max_norm, o.norm_type
  self.scale_grad_by_freq = o.scale_grad_by_freq
  self.weight = core.parameter(core.empty(o.num_embeddings, o.embedding_dim,
    {dtype = o.dtype, device = o.device}))
  self:reset_parameters()
end

-- Normal; the padding row is zero.
function Embedding:reset_parameters()
  fill(self.weight, "normal_", 0, 1)
  if self.padding_idx then fill(self.weight.data[self.padding_idx], "zero_") end
end

local bind_pretrained = options.signature("Embedding.from_pretrained", [[embeddings: tensor,
  freeze: boolean = true, padding_idx?: integer, max_norm?: number, norm_type: number = 2.0,
  scale_grad_by_freq: boolean = false]])

-- A layer of the class on the tensor's memory, with the options of its constructor.
local function from_pretrained(class, o)
  local weight = o.embeddings
  if weight:dim() ~= 2 then
    caller.raise("%s.from_pretrained: embeddings are %s, wanted {rows, features}", class.class,
      tostring(weight.shape))
  end
  local freeze = o.freeze
  o.embeddings, o.freeze = nil, nil
  o.num_embeddings, o.embedding_dim = weight:size(1), weight:size(2)
  local layer = class(o)
  layer.weight = core.parameter(weight:detach(), not freeze)
  return layer
end

--- Embedding.from_pretrained(embeddings, freeze = true, ...): a layer whose weight is a tensor
--- (rows, features), on its memory; with freeze it is not trained. The further arguments are the
--- constructor's.
function Embedding.from_pretrained(...)
  return from_pretrained(Embedding, bind_pretrained(...))
end

function Embedding:forward(ids)
  if not (self.max_norm or self.scale_grad_by_freq) then
    return core.embedding(ids, self.weight, self.padding_idx)
  end
  return functional.embedding(ids, self.weight, self.padding_idx, self.max_norm, self.norm_type,
    self.scale_grad_by_freq)
end

function Embedding:extra_repr()
  return ("%d, %d%s"):format(self.num_embeddings, self.embedding_dim,
    self.padding_idx and ", padding_idx = " .. self.padding_idx or "")
end

--- Sums, means or largest values of bags of rows, (B, D): ids (B, L), a bag a row; or ids
--- (T), and offsets (B), where each bag begins. Ids at padding_idx do not count.
local EmbeddingBag = Module:extend "EmbeddingBag"
EmbeddingBag.holds_no_activations = true

local bind_bag = options.signature("EmbeddingBag", [[num_embeddings: integer,
  embedding_dim: integer, max_norm?: number, norm_type: number = 2.0,
  scale_grad_by_freq: boolean = false, *, mode: 'sum'|'mean'|'max' = 'mean',
  include_last_offset: boolean = false, padding_idx?: integer, device?: device,
  dtype?: dtype]])

function EmbeddingBag:init(...)
  local o = bind_bag(...)
  self.num_embeddings, self.embedding_dim = o.num_embeddings, o.embedding_dim
  self.mode, self.include_last_offset = o.mode, o.include_last_offset
  self.scale_grad_by_freq = o.scale_grad_by_freq
  self.padding_idx, self.max_norm, self.norm_type = o.padding_idx, o.max_norm, o.norm_type
  self.weight = core.parameter(core.empty(o.num_embeddings, o.embedding_dim,
    {dtype = o.dtype, device = o.device}))
  self:reset_parameters()
end

EmbeddingBag.reset_parameters = Embedding.reset_parameters

local bind_pretrained_bag = options.signature("EmbeddingBag.from_pretrained", [[embeddings: tensor,
  freeze: boolean = true, max_norm?: number, norm_type: number = 2.0,
  scale_grad_by_freq: boolean = false, mode: 'sum'|'mean'|'max' = 'mean',
  include_last_offset: boolean = false, padding_idx?: integer]])

--- EmbeddingBag.from_pretrained(embeddings, freeze = true, ...): as Embedding's.
function EmbeddingBag.from_pretrained(...)
  return from_pretrained(EmbeddingBag, bind_pretrained_bag(...))
end

local bind_bag_call = options.call_signature("EmbeddingBag",
  "input: tensor, offsets?: tensor, per_sample_weights?: tensor")

function EmbeddingBag:forward(...)
  local o = bind_bag_call(...)
  return functional.embedding_bag(o.input, self.weight, {offsets = o.offsets, mode = self.mode,
    per_sample_weights = o.per_sample_weights, include_last_offset = self.include_last_offset,
    padding_idx = self.padding_idx, max_norm = self.max_norm, norm_type = self.norm_type,
    scale_grad_by_freq = self.scale_grad_by_freq})
end

function EmbeddingBag:extra_repr()
  return ("%d, %d, mode = %s%s"):format(self.num_embeddings, self.embedding_dim, self.mode,
    self.padding_idx and ", padding_idx = " .. self.padding_idx or "")
end

--- Dims start_dim (2) to end_dim (-1) as one: x (N, C, H, W) -> (N, C H W).
local Flatten = Module:extend "Flatten"
Flatten.holds_no_activations = true

local bind_flatten = options.signature("Flatten", [[start_dim: integer = 2,
  end_dim: integer = -1]])

function Flatten:init(...)
  local o = bind_flatten(...)
  self.start_dim, self.end_dim = o.start_dim, o.end_dim
end

function Flatten:forward(x) return core.flatten(x, self.start_dim, self.end_dim) end

-- Zeros with probability p while training, and scales the rest by 1 / (1 - p);
-- N. Srivastava et al. 2014.
local function dropout(name, op)
  local bind = options.signature(name, "p, inplace: boolean = false", op)
  local apply, apply_ = core[op], in_place(op)
  local Dropout = Module:extend(name)
  Dropout.holds_no_activations = true
  function Dropout:init(...)
    local o = bind(...)
    self.p, self.inplace = o.p, o.inplace
  end
  function Dropout:forward(x)
    return (self.inplace and apply_ or apply)(x, {p = self.p, training = self.training})
  end
  function Dropout:extra_repr() return tostring(self.p) end
  layers[name] = Dropout
end
dropout("Dropout", "dropout")
-- These zero whole channels; J. Tompson et al. 2015.
for dims = 1, 3 do dropout(("Dropout%dd"):format(dims), ("dropout%dd"):format(dims)) end
-- Elements become selu's lower limit with probability p while training, and all are scaled and
-- shifted so that mean 0 and variance 1 stay; G. Klambauer et al. 2017.
dropout("AlphaDropout", "alpha_dropout")
dropout("FeatureAlphaDropout", "feature_alpha_dropout")

layers.Linear, layers.Bilinear, layers.Flatten = Linear, Bilinear, Flatten
layers.Embedding, layers.EmbeddingBag = Embedding, EmbeddingBag
return layers
