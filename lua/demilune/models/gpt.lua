-- GPT-2 with the names and the start of Hugging Face's GPT2LMHeadModel.
-- A. Radford et al. 2019.

local core = require "demilune.core"
local caller = require "demilune.caller"
local nn = require "demilune.nn"
local options = require "demilune.options"
local Cache = require "demilune.models.cache"
local blocks = require "demilune.models.blocks"
local TiedLinear = require "demilune.models.tied"
local generate = require "demilune.models.generate"

local gpt = {}

local STD = 0.02 -- of all initial weights

--- x (..., I) -> y (..., O) = x W + b, W (I, O): a Linear with a transposed weight.
local Conv1D = nn.Module:extend "Conv1D"
Conv1D.holds_no_activations = true

function Conv1D:init(outputs, inputs, std)
  self.weight = nn.Parameter(core.empty(inputs, outputs))
  self.bias = nn.Parameter(core.zeros(outputs))
  nn.init.normal_(self.weight, 0, std or STD)
end

function Conv1D:forward(x)
  local shape = {table.unpack(x.shape)}
  shape[#shape] = self.bias:size(1)
  local rows = x:reshape(-1, x:size(-1))
  local y = core.addmm(self.bias, rows, self.weight)
  local reshaped = y:reshape(shape)
  -- views and their bases would hold memory until they are collected
  if not rawequal(rows, x) then rows:free() end
  if not rawequal(reshaped, y) then y:free() end
  return reshaped
end

function Conv1D:extra_repr()
  return ("%d -> %d"):format(self.weight:size(1), self.weight:size(2))
end

-- ---- one block ----

--- Causal self-attention: x (B, T, n_embd) -> (B, T, n_embd). With a cache, in which this is
--- layer i, x follows what the cache holds; mask (T, all so far) says who sees whom, or nil.
local Attention = nn.Module:extend "GPT2Attention"
Attention.holds_no_activations = true

function Attention:init(o)
  self.n_head, self.p = o.n_head, o.dropout
  self.c_attn = Conv1D(3 * o.n_embd, o.n_embd)
  self.c_proj = Conv1D(o.n_embd, o.n_embd, o.residual_std)
  self.resid_dropout = nn.Dropout(o.dropout)
end

function Attention:forward(x, cache, i, mask)
  local B, T = x:size(1), x:size(2)
  local qkv = self.c_attn(x):reshape(B, T, 3, self.n_head, -1)
  local function heads(part) return qkv:select(3, part):transpose(2, 3) end
  local k, v = heads(2), heads(3)
  if cache then k, v = cache:append(i, k, v) end
  local y = core.scaled_dot_product_attention(heads(1), k, v,
    {attn_mask = mask, is_causal = k:size(3) == T, dropout_p = self.training and self.p or 0})
  local by_head = y:transpose(2, 3)
  local joined = by_head:flatten(3)
  y:free()
  by_head:free()
  return self.resid_dropout(self.c_proj(joined))
end

--- The MLP of a block, with tanh's gelu: x (B, T, n_embd) -> (B, T, n_embd).
local MLP = nn.Module:extend "GPT2MLP"
MLP.holds_no_activations = true

function MLP:init(o)
  self.c_fc = Conv1D(4 * o.n_embd, o.n_embd)
  self.c_proj = Conv1D(o.n_embd, 4 * o.n_embd, o.residual_std)
  self.dropout = nn.Dropout(o.dropout)
end

function MLP:forward(x)
  local h = self.c_fc(x)
  local activated = core.gelu(h, {approximate = "tanh"})
  local y = self.c_proj(activated)
  if nn.Module.hold_nothing(self.c_fc, self.c_proj) then
    h:free()
    if not rawequal(activated, y) then activated:free() end
  end
  return self.dropout(y)
end

--- Attention and MLP, each after a layer norm and added to x (B, T, n_embd).
local Block = nn.Module:extend "GPT2Block"
Block.holds_no_activations = true

function Block:init(o)
  self.ln_1 = nn.LayerNorm(o.n_embd)
  self.attn = Attention(o)
  self.ln_2 = nn.LayerNorm(o.n_embd)
  self.mlp = MLP(o)
end

function Block:run(stream, cache, i, mask)
  stream:add(self.ln_1, function(y) return self.attn(y, cache, i, mask) end, self.attn)
  stream:add(self.ln_2, self.mlp)
end

Block.forward = blocks.forward

-- ---- the model ----

--- GPT-2 without a head: ids (B, T) -> (B, T, n_embd); with a cache they follow its tokens, and
--- join them.
local Model = nn.Module:extend "GPT2Model"

local function embedding(n, dim)
  local layer = nn.Embedding(n, dim)
  local _ <close> = core.no_grad()
  layer.weight:mul_(STD) -- it starts with a deviation of 1
  return layer
end

function Model:init(o)
  self.block_size = o.block_size
  self.wte = embedding(o.vocab_size, o.n_embd)
  self.wpe = embedding(o.block_size, o.n_embd)
  self.drop = nn.Dropout(o.dropout)
  self.h = nn.ModuleList()
  for _ = 1, o.n_layer do self.h:append(Block(o)) end
  self.ln_f = nn.LayerNorm(o.n_embd)
end

function Model:forward(ids, cache)
  if ids:dim() ~= 2 or ids:size(2) > self.block_size then
    caller.raise("GPT2: ids are %s, wanted {batch, 1 to %d tokens}", tostring(ids.shape),
      self.block_size)
  end
  if cache ~= nil and (getmetatable(cache) ~= Cache or cache.n_layer ~= #self.h) then
    caller.raise("GPT2: the cache is %s, wanted one of this model's; hint: model:cache()",
      type(cache) == "table" and tostring(cache) or type(cache))
  end
  if cache then cache:check(ids) end
  local from, T = cache and cache.length or 0, ids:size(2)
  local positions = core.arange(from + 1, from + T, {device = ids.device})
  local x = self.drop(self.wte(ids) + self.wpe(positions))
  local mask = cache and cache:mask(T, ids.device)
  local stream = blocks.stream(self.h, Block, x, function(i) return cache, i, mask end)
  if cache then cache.length = from + T end
  return stream:norm(self.ln_f)
end

--- GPT-2 with its head, which shares the embedding's weight: ids (B, T) -> scores of the
--- next token (B, T, vocab_size). `model(ids, cache)` goes on where the cache's tokens end, and
--- reads the new ones only; it wants dm.no_grad().
local GPT2 = nn.Module:extend "GPT2LMHeadModel"

function GPT2:init(o)
  if o.n_embd % o.n_head ~= 0 then
    caller.raise("gpt2: %d heads do not divide n_embd = %d", o.n_head, o.n_embd)
  end
  o.residual_std = STD / math.sqrt(2 * o.n_layer) -- 2 n_layer branches are summed
  self.transformer = Model(o)
  self.lm_head = TiedLinear(self.transformer.wte.weight)
end

function GPT2:forward(ids, cache) return self.lm_head(self.transformer(ids, cache)) end

--- A new cache of keys and values for `model(ids, cache)`, of a text of at most `capacity` tokens
--- (block_size): two tensors (B, n_head, capacity, n_embd / n_head) for each block.
function GPT2:cache(capacity)
  local most = self.transformer.block_size
  capacity = capacity or most
  if math.type(capacity) ~= "integer" or capacity < 1 or capacity > most then
    caller.raise("cache: capacity is %s, wanted 1 to %d tokens", tostring(capacity), most)
  end
  return Cache.new(#self.transformer.h, capacity)
end

-- The scores (B, vocab_size) of the token after ids (B, T).
function GPT2:next_scores(ids, cache)
  return self.lm_head(self.transformer(ids, cache):select(2, ids:size(2)))
end

--- Takes what Hugging Face's files hold too: names without "transformer.", causal masks
--- among the weights, and no lm_head, which is wte.
function GPT2.known_names(_, state)
  local own = {}
  for name, t in pairs(state) do
    if type(name) == "string" and not name:find "%.attn%.bias$"
      and not name:find "%.attn%.masked_bias$" then
      local named = name:find "^transformer%." or name:find "^lm_head%."
      own[named and name or "transformer." .. name] = t
    end
  end
  own["lm_head.weight"] = own["lm_head.weight"] or own["transformer.wte.weight"]
  return own
end

--- generate(ids, n, {temperature = 1, top_k = 50, generator =}) -> ids with n more in each
--- row. Only the last block_size of them are looked at. As long as all of them are, each token is
--- read once and kept in a cache; after that the last block_size are read anew for each.
function GPT2:generate(...)
  return generate(self, self.transformer.block_size, ...)
end

--- gpt2{n_layer = 12, n_head = 12, n_embd = 768, block_size = 1024, vocab_size = 50257,
--- dropout = 0.1} -> a module of token ids (B, T) that gives scores of the next token
--- (B, T, vocab_size). The defaults are the model of 124 million parameters.
local bind = options.signature("gpt2", [[*, n_layer: integer = 12, n_head: integer = 12,
  n_embd: integer = 768, block_size: integer = 1024, vocab_size: integer = 50257,
  dropout: number = 0.1]])
function gpt.gpt2(...) return GPT2(bind(...)) end

return gpt
