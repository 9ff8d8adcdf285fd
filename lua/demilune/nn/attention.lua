-- MultiheadAttention and the layers of A. Vaswani et al. 2017 made of it, with the
-- names and first values of PyTorch's. N is the batch, L and S are the lengths of the
-- query and of the key, E is the width, H the number of heads.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local fill = require "demilune.nn.fill"
local init = require "demilune.nn.init_weights"
local Module = require "demilune.nn.module"
local containers = require "demilune.nn.containers"
local linear = require "demilune.nn.linear"
local LayerNorm = require("demilune.nn.norm").LayerNorm

local layers = {}

local function rate_of(class, p)
  if not (p >= 0 and p <= 1) then
    caller.raise("%s: dropout is %s, wanted a number from 0 to 1", class, tostring(p))
  end
  return p
end

-- ---- masks ----

-- A bool mask, true where a key is not to be seen, as numbers to add.
local function additive(mask, dtype)
  if mask.dtype == "bool" then mask = core.where(mask, -math.huge, 0.0) end
  return mask:to(dtype)
end

-- (L, S): -inf above the diagonal, 0 elsewhere.
local function causal_mask(L, S, opts)
  return core.full({L, S}, -math.huge, opts):triu(1)
end

local function check_mask(self, name, mask, ...)
  for _, wanted in ipairs{...} do
    local text = "{" .. table.concat(wanted, ", ") .. "}"
    if tostring(mask.shape) == text then return end
  end
  local last = select(-1, ...)
  caller.raise("%s: %s has shape %s, wanted {%s}", self.class, name, tostring(mask.shape),
    table.concat(last, ", "))
end

-- One additive mask that broadcasts to (N, H, L, S), or nil.
local function merged_mask(self, o, dtype, N, L, S)
  local H, mask, padding = self.num_heads, o.attn_mask, o.key_padding_mask
  if mask then
    check_mask(self, "attn_mask", mask, {N * H, L, S}, {L, S})
    mask = additive(mask, dtype)
    if mask:dim() == 3 then mask = mask:reshape(N, H, L, S) end
  end
  if padding then
    if padding:dim() == 1 then padding = padding:unsqueeze(1) end
    check_mask(self, "key_padding_mask", padding, {N, S})
    padding = additive(padding, dtype):reshape(N, 1, 1, S)
    mask = mask and mask + padding or padding
  end
  return mask
end

-- ---- MultiheadAttention ----

--- query (N, L, E), key (N, S, kdim), value (N, S, vdim) with batch_first; else (L, N, E)
--- and so on; or without N -> y, shaped as query; weights (N, L, S), averaged over the
--- heads, or (N, H, L, S); nil when they are not wanted (need_weights = false: then no
--- matrix of them is ever held). Options of a call: key_padding_mask (N, S), attn_mask
--- (L, S) or (N H, L, S): bool, true where a key is NOT seen, or numbers to add;
--- need_weights, average_attn_weights; is_causal: a query sees no key after it (a mask
--- that comes with it is the causal one). add_bias_kv: one more key and value, learnt, and
--- add_zero_attn: one more of zeros, which every query sees; they count in S of the weights.
local MultiheadAttention = Module:extend "MultiheadAttention"
MultiheadAttention.holds_no_activations = true

local function parameter(...) return core.parameter(core.empty(...)) end

local bind_attention = options.signature("MultiheadAttention", [[embed_dim: integer,
  num_heads: integer, dropout: number = 0, bias: boolean = true,
  add_bias_kv: boolean = false, add_zero_attn: boolean = false, kdim?: integer, vdim?: integer,
  batch_first: boolean = false, device?: device, dtype?: dtype]])

function MultiheadAttention:init(...)
  local o = bind_attention(...)
  local embed_dim, num_heads = o.embed_dim, o.num_heads
  if num_heads < 1 or embed_dim % num_heads ~= 0 then
    caller.raise("MultiheadAttention: %d heads do not divide embed_dim = %d", num_heads,
      embed_dim)
  end
  self.embed_dim, self.num_heads, self.batch_first = embed_dim, num_heads, o.batch_first
  self.dropout = rate_of(self.class, o.dropout)
  local kdim, vdim = o.kdim or embed_dim, o.vdim or embed_dim
  local how = {dtype = o.dtype, device = o.device}
  if kdim == embed_dim and vdim == embed_dim then
    self.in_proj_weight = parameter(3 * embed_dim, embed_dim, how)
  else
    self.q_proj_weight = parameter(embed_dim, embed_dim, how)
    self.k_proj_weight = parameter(embed_dim, kdim, how)
    self.v_proj_weight = parameter(embed_dim, vdim, how)
  end
  if o.bias then self.in_proj_bias = parameter(3 * embed_dim, how) end
  self.out_proj = linear.Linear(embed_dim, embed_dim,
    {bias = o.bias, dtype = o.dtype, device = o.device})
  if o.add_bias_kv then
    self.bias_k, self.bias_v = parameter(1, 1, embed_dim, how), parameter(1, 1, embed_dim, how)
  end
  self.add_zero_attn = o.add_zero_attn
  self:reset_parameters()
end

-- PyTorch's: xavier for what goes in and for bias_k and bias_v, 0 for all other biases.
function MultiheadAttention:reset_parameters()
  for _, name in ipairs{"in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"} do
    if self[name] then init.xavier_uniform_(self[name]) end
  end
  if self.in_proj_bias then
    fill(self.in_proj_bias, "zero_")
    fill(self.out_proj.bias, "zero_")
  end
  if self.bias_k then
    init.xavier_normal_(self.bias_k)
    init.xavier_normal_(self.bias_v)
  end
end

-- (N, L, E) -> (N, H, L, E / H)
local function split_heads(self, x)
  return x:reshape(x:size(1), x:size(2), self.num_heads, -1):transpose(2, 3)
end

-- The heads of query, key and value. One product makes all three of one tensor, whose parts are
-- views, and so are its gradient's.
local function project(self, query, key, value)
  local E, weight, bias = self.embed_dim, self.in_proj_weight, self.in_proj_bias
  if weight and rawequal(query, key) and rawequal(key, value) then
    local all = core.linear(query, weight, bias):reshape(query:size(1), query:size(2), 3,
      self.num_heads, E // self.num_heads)
    local function heads(part) return all:select(3, part):transpose(2, 3) end
    return heads(1), heads(2), heads(3)
  end
  local function part(x, i, name)
    local w = weight and weight:narrow(1, (i - 1) * E + 1, E) or self[name]
    return split_heads(self, core.linear(x, w, bias and bias:narrow(1, (i - 1) * E + 1, E)))
  end
  return part(query, 1, "q_proj_weight"), part(key, 2, "k_proj_weight"),
    part(value, 3, "v_proj_weight")
end

-- y (N, H, L, E / H) and the weights (N, H, L, S), step by step.
local function attend_openly(q, k, v, mask, p)
  local N, H, L, S = q:size(1), q:size(2), q:size(3), k:size(3)
  q = (q * (1 / math.sqrt(q:size(4)))):flatten(1, 2)
  k = k:flatten(1, 2):transpose(2, 3)
  local scores = mask and core.baddbmm(mask:expand(N, H, L, S):flatten(1, 2), q, k)
    or core.bmm(q, k)
  local weights = core.dropout(scores:softmax(-1), {p = p})
  local y = core.bmm(weights, v:flatten(1, 2))
  return y:reshape(N, H, L, -1), weights:reshape(N, H, L, S)
end

-- k and v (N, H, S, E / H) with those that every query sees, and the mask for them.
local function extended(self, k, v, mask)
  local N, S = k:size(1), k:size(3)
  if self.bias_k then
    local function learnt(bias) return split_heads(self, bias:expand(N, 1, -1)) end
    k = core.cat({k, learnt(self.bias_k):to(k.dtype)}, {dim = 3})
    v = core.cat({v, learnt(self.bias_v):to(v.dtype)}, {dim = 3})
  end
  if self.add_zero_attn then
    k, v = core.pad(k, {0, 0, 0, 1}), core.pad(v, {0, 0, 0, 1})
  end
  return k, v, mask and core.pad(mask, {0, k:size(3) - S})
end

local function attend(self, q, k, v, o)
  local N, L, S = q:size(1), q:size(3), k:size(3)
  local p = self.training and self.dropout or 0
  local causal = o.is_causal
    and not (o.need_weights or o.key_padding_mask or self.bias_k or self.add_zero_attn)
  if causal then
    return core.scaled_dot_product_attention(q, k, v, {is_causal = true, dropout_p = p})
  end
  if o.is_causal and not o.attn_mask then
    o.attn_mask = causal_mask(L, S, {dtype = q.dtype, device = q.device})
  end
  local mask = merged_mask(self, o, q.dtype, N, L, S)
  if self.bias_k or self.add_zero_attn then k, v, mask = extended(self, k, v, mask) end
  if o.need_weights then return attend_openly(q, k, v, mask, p) end
  return core.scaled_dot_product_attention(q, k, v, {attn_mask = mask, dropout_p = p})
end

local bind_call = options.call_signature("MultiheadAttention", [[query: tensor, key: tensor,
  value: tensor, key_padding_mask?: tensor, need_weights: boolean = true, attn_mask?: tensor,
  average_attn_weights: boolean = true, is_causal: boolean = false]])

local function check_inputs(self, query, key, value)
  for name, x in pairs{query = query, key = key, value = value} do
    if x:dim() ~= query:dim() or x:dim() ~= 2 and x:dim() ~= 3 then
      caller.raise("%s: %s is %s, wanted 3 dims, or 2 of a single sequence", self.class, name,
        tostring(x.shape))
    end
  end
end

-- fn of each tensor; one that comes twice stays one.
local function map(fn, q, k, v)
  local a = fn(q)
  local b = rawequal(k, q) and a or fn(k)
  return a, b, rawequal(v, k) and b or fn(v)
end

local function unbatched(x) return x:unsqueeze(1) end
local function swapped(x) return x:transpose(1, 2) end

function MultiheadAttention:forward(...)
  local o = bind_call(...)
  local query, key, value = o.query, o.key, o.value
  check_inputs(self, query, key, value)
  local batched = query:dim() == 3
  local turn = batched and not self.batch_first and swapped or not batched and unbatched
  local q, k, v = query, key, value
  if turn then q, k, v = map(turn, q, k, v) end
  q, k, v = project(self, q, k, v)
  local y, weights = attend(self, q, k, v, o)
  local by_head = y:transpose(2, 3)
  local joined = by_head:flatten(3)
  y:free() -- a handle of this function's, and its view
  by_head:free()
  y = self.out_proj(joined)
  if weights and o.average_attn_weights then weights = weights:mean(2) end
  if not batched then return y:squeeze(1), weights and weights:squeeze(1) end
  if turn then y = swapped(y) end
  return y, weights
end

function MultiheadAttention:extra_repr()
  return ("%d, heads = %d"):format(self.embed_dim, self.num_heads)
end

-- ---- layers ----

local LAYER = [[dim_feedforward: integer = 2048, dropout: number = 0.1,
  activation: 'relu'|'gelu'|function = 'relu', ]]
local LAYER_FORM = [[layer_norm_eps: number = 1e-5, batch_first: boolean = false,
  norm_first: boolean = false, bias: boolean = true, device?: device, dtype?: dtype]]

--- The parts that encoder and decoder layers share.
local Layer = Module:extend "Layer"
Layer.holds_no_activations = true

function Layer:init(...)
  local o = self.bind(...)
  local d_model, nhead = o.d_model, o.nhead
  local how = {bias = o.bias, dtype = o.dtype, device = o.device}
  local function attention()
    return MultiheadAttention(d_model, nhead, {dropout = o.dropout, batch_first = o.batch_first,
      bias = o.bias, dtype = o.dtype, device = o.device})
  end
  self.d_model, self.norm_first = d_model, o.norm_first
  self.activation = type(o.activation) == "string" and core[o.activation] or o.activation
  self.self_attn = attention()
  if self.attends_twice then self.multihead_attn = attention() end
  self.linear1 = linear.Linear(d_model, o.dim_feedforward, how)
  self.dropout = linear.Dropout(o.dropout)
  self.linear2 = linear.Linear(o.dim_feedforward, d_model, how)
  for i = 1, self.attends_twice and 3 or 2 do
    self["norm" .. i] = LayerNorm(d_model, {eps = o.layer_norm_eps, bias = o.bias,
      dtype = o.dtype, device = o.device})
    self["dropout" .. i] = linear.Dropout(o.dropout)
  end
end

--- x + the i-th branch of x, with the norm before the branch (norm_first) or after the sum.
function Layer:add_branch(i, x, branch)
  local norm, dropout = self["norm" .. i], self["dropout" .. i]
  if self.norm_first then return x + dropout(branch(norm(x))) end
  return norm(x + dropout(branch(x)))
end

--- activation(linear1(x)): x (..., d_model) -> (..., dim_feedforward).
function Layer:activate(x)
  if self.activation == core.relu then return linear.Linear.then_relu(self.linear1, x) end
  return self.activation(self.linear1(x))
end

--- x + the MLP of x, as the i-th branch: (..., d_model) -> the same shape.
function Layer:feed_forward(i, x)
  return self:add_branch(i, x, function(y)
    return self.linear2(self.dropout(self:activate(y)))
  end)
end

--- x + its self-attention, as the first branch: (..., d_model) -> the same shape.
function Layer:attend_self(x, mask, padding, is_causal)
  return self:add_branch(1, x, function(y)
    return (self.self_attn(y, y, y, {attn_mask = mask, key_padding_mask = padding,
      is_causal = is_causal, need_weights = false}))
  end)
end

--- src (L, N, E), with batch_first (N, L, E), or (L, E) -> the same shape.
local TransformerEncoderLayer = Layer:extend "TransformerEncoderLayer"
TransformerEncoderLayer.bind = options.signature("TransformerEncoderLayer",
  "d_model: integer, nhead: integer, " .. LAYER .. LAYER_FORM)

local bind_encode = options.call_signature("TransformerEncoderLayer", [[src: tensor,
  src_mask?: tensor, src_key_padding_mask?: tensor, is_causal: boolean = false]])

--- Options of a call: src_mask (L, L) or (N H, L, L): bool, true where a position is NOT seen, or
--- numbers to add; src_key_padding_mask (N, L): alike, of keys; is_causal: a position sees none
--- after it.
function TransformerEncoderLayer:forward(...)
  local o = bind_encode(...)
  local x = self:attend_self(o.src, o.src_mask, o.src_key_padding_mask, o.is_causal)
  return self:feed_forward(2, x)
end

--- tgt (T, N, E), memory (S, N, E), with batch_first (N, T, E), (N, S, E) -> tgt's shape.
local TransformerDecoderLayer = Layer:extend "TransformerDecoderLayer"
TransformerDecoderLayer.attends_twice = true
TransformerDecoderLayer.bind = options.signature("TransformerDecoderLayer",
  "d_model: integer, nhead: integer, " .. LAYER .. LAYER_FORM)

local DECODE = [[tgt_mask?: tensor, memory_mask?: tensor, tgt_key_padding_mask?: tensor,
  memory_key_padding_mask?: tensor, tgt_is_causal: boolean = false,
  memory_is_causal: boolean = false]]
local bind_decode = options.call_signature("TransformerDecoderLayer",
  "tgt: tensor, memory: tensor, " .. DECODE)

--- Options of a call: tgt_mask (T, T), memory_mask (T, S), tgt_key_padding_mask (N, T),
--- memory_key_padding_mask (N, S): bool, true where a position is NOT seen, or numbers to add;
--- tgt_is_causal, memory_is_causal: a position sees none after it.
function TransformerDecoderLayer:forward(...)
  local o = bind_decode(...)
  local memory = o.memory
  local x = self:attend_self(o.tgt, o.tgt_mask, o.tgt_key_padding_mask, o.tgt_is_causal)
  x = self:add_branch(2, x, function(y)
    return (self.multihead_attn(y, memory, memory, {attn_mask = o.memory_mask,
      key_padding_mask = o.memory_key_padding_mask, is_causal = o.memory_is_causal,
      need_weights = false}))
  end)
  return self:feed_forward(3, x)
end

-- ---- stacks of layers ----

--- num_layers copies of a layer, then norm.
local Stack = Module:extend "Stack"

local function stack(self, o, layer)
  self.layers = containers.ModuleList()
  for _ = 1, o.num_layers do self.layers:append(layer:copy()) end
  self.norm = o.norm
end

--- All encoder layers in turn: src as a layer's -> the same shape.
local TransformerEncoder = Stack:extend "TransformerEncoder"

local bind_encoder = options.signature("TransformerEncoder",
  "encoder_layer: module, num_layers: integer, norm?: module")
function TransformerEncoder:init(...)
  local o = bind_encoder(...)
  stack(self, o, o.encoder_layer)
end

local bind_encode_all = options.call_signature("TransformerEncoder", [[src: tensor, mask?: tensor,
  src_key_padding_mask?: tensor, is_causal: boolean = false]])

--- Options of a call: mask (L, L), src_key_padding_mask (N, L), is_causal, as of a layer.
function TransformerEncoder:forward(...)
  local o = bind_encode_all(...)
  local src = o.src
  local each = {src_mask = o.mask, src_key_padding_mask = o.src_key_padding_mask,
    is_causal = o.is_causal}
  for _, layer in ipairs(self.layers) do src = layer(src, each) end
  return self.norm and self.norm(src) or src
end

--- All decoder layers in turn, with a decoder layer's options: tgt and memory -> tgt's shape.
local TransformerDecoder = Stack:extend "TransformerDecoder"

local bind_decoder = options.signature("TransformerDecoder",
  "decoder_layer: module, num_layers: integer, norm?: module")
function TransformerDecoder:init(...)
  local o = bind_decoder(...)
  stack(self, o, o.decoder_layer)
end

local bind_decode_all = options.call_signature("TransformerDecoder",
  "tgt: tensor, memory: tensor, " .. DECODE)

function TransformerDecoder:forward(...)
  local o = bind_decode_all(...)
  local tgt, memory = o.tgt, o.memory
  o.tgt, o.memory = nil, nil
  for _, layer in ipairs(self.layers) do tgt = layer(tgt, memory, o) end
  return self.norm and self.norm(tgt) or tgt
end

-- ---- Transformer ----

--- Encoder and decoder: src (L, N, E), tgt (T, N, E), with batch_first (N, L, E) and
--- (N, T, E) -> tgt's shape.
local Transformer = Module:extend "Transformer"

local bind_transformer = options.signature("Transformer", [[d_model: integer = 512,
  nhead: integer = 8, num_encoder_layers: integer = 6, num_decoder_layers: integer = 6, ]]
  .. LAYER .. "custom_encoder?: module, custom_decoder?: module, " .. LAYER_FORM)

function Transformer:init(...)
  local o = bind_transformer(...)
  local how = {}
  for key, value in pairs(o) do how[key] = value end
  for _, key in ipairs{"d_model", "nhead", "num_encoder_layers", "num_decoder_layers",
    "custom_encoder", "custom_decoder"} do
    how[key] = nil
  end
  local function norm()
    return LayerNorm(o.d_model, {eps = o.layer_norm_eps, bias = o.bias, dtype = o.dtype,
      device = o.device})
  end
  self.encoder = o.custom_encoder or TransformerEncoder(
    TransformerEncoderLayer(o.d_model, o.nhead, how), o.num_encoder_layers, norm())
  self.decoder = o.custom_decoder or TransformerDecoder(
    TransformerDecoderLayer(o.d_model, o.nhead, how), o.num_decoder_layers, norm())
  for _, p in self:named_parameters() do
    if p:dim() > 1 then init.xavier_uniform_(p) end
  end
end

local bind_translate = options.call_signature("Transformer", [[src: tensor, tgt: tensor,
  src_mask?: tensor, tgt_mask?: tensor, memory_mask?: tensor, src_key_padding_mask?: tensor,
  tgt_key_padding_mask?: tensor, memory_key_padding_mask?: tensor,
  src_is_causal: boolean = false, tgt_is_causal: boolean = false,
  memory_is_causal: boolean = false]])

--- Options of a call: src_mask, tgt_mask, memory_mask, src_key_padding_mask,
--- tgt_key_padding_mask, memory_key_padding_mask, src_is_causal, tgt_is_causal and
--- memory_is_causal, as of the layers.
function Transformer:forward(...)
  local o = bind_translate(...)
  local memory = self.encoder(o.src, {mask = o.src_mask,
    src_key_padding_mask = o.src_key_padding_mask, is_causal = o.src_is_causal})
  return self.decoder(o.tgt, memory, {tgt_mask = o.tgt_mask, memory_mask = o.memory_mask,
    tgt_key_padding_mask = o.tgt_key_padding_mask,
    memory_key_padding_mask = o.memory_key_padding_mask, tgt_is_causal = o.tgt_is_causal,
    memory_is_causal = o.memory_is_causal})
end

--- (n, n): what a query adds to the scores so that it sees no key after it.
function Transformer.generate_square_subsequent_mask(n, opts)
  return causal_mask(n, n, opts)
end

layers.MultiheadAttention, layers.Transformer = MultiheadAttention, Transformer
layers.TransformerEncoderLayer = TransformerEncoderLayer
layers.TransformerDecoderLayer = TransformerDecoderLayer
layers.TransformerEncoder, layers.TransformerDecoder = TransformerEncoder, TransformerDecoder
return layers
