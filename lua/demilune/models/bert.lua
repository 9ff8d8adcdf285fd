-- BERT with its masked-word head, with the names and the initial weights of Hugging Face's
-- BertForMaskedLM. J. Devlin et al. 2018.

local core = require "demilune.core"
local caller = require "demilune.caller"
local nn = require "demilune.nn"
local options = require "demilune.options"
local TiedLinear = require "demilune.models.tied"

local bert = {}

local function norm(o) return nn.LayerNorm(o.hidden_size, {eps = 1e-12}) end

-- ---- one layer ----

--- Attention of all tokens to all others: x (B, T, hidden) -> (B, T, hidden).
local SelfAttention = nn.Module:extend "BertSelfAttention"

function SelfAttention:init(o)
  self.heads, self.p = o.num_attention_heads, o.attention_probs_dropout_prob
  for _, name in ipairs{"query", "key", "value"} do
    self[name] = nn.Linear(o.hidden_size, o.hidden_size)
  end
end

-- x (B, T, hidden), mask (B, 1, 1, T) or nil
function SelfAttention:forward(x, mask)
  local function heads(linear)
    return linear(x):reshape(x:size(1), x:size(2), self.heads, -1):transpose(2, 3)
  end
  local y = core.scaled_dot_product_attention(heads(self.query), heads(self.key),
    heads(self.value), {attn_mask = mask, dropout_p = self.training and self.p or 0})
  return y:transpose(2, 3):flatten(3)
end

--- The end of a branch: y (B, T, inputs) -> layer norm of x + dropout(linear(y)), (B, T, hidden).
local Output = nn.Module:extend "BertOutput"

function Output:init(inputs, o)
  self.dense = nn.Linear(inputs, o.hidden_size)
  self.LayerNorm = norm(o)
  self.dropout = nn.Dropout(o.hidden_dropout_prob)
end

function Output:forward(y, x) return self.LayerNorm(self.dropout(self.dense(y)) + x) end

--- Self-attention, its output layer, and the sum with x (B, T, hidden).
local Attention = nn.Module:extend "BertAttention"

function Attention:init(o)
  self.self = SelfAttention(o)
  self.output = Output(o.hidden_size, o)
end

function Attention:forward(x, mask) return self.output(self.self(x, mask), x) end

--- The first half of the MLP: (B, T, hidden) -> gelu, (B, T, intermediate).
local Intermediate = nn.Module:extend "BertIntermediate"

function Intermediate:init(o) self.dense = nn.Linear(o.hidden_size, o.intermediate_size) end
function Intermediate:forward(x) return core.gelu(self.dense(x)) end

--- One layer: attention, then the MLP; x (B, T, hidden) -> (B, T, hidden).
local Layer = nn.Module:extend "BertLayer"

function Layer:init(o)
  self.attention = Attention(o)
  self.intermediate = Intermediate(o)
  self.output = Output(o.intermediate_size, o)
end

function Layer:forward(x, mask)
  x = self.attention(x, mask)
  return self.output(self.intermediate(x), x)
end

-- ---- the model ----

--- Embeddings of words, positions and token types: ids (B, T) -> (B, T, hidden).
local Embeddings = nn.Module:extend "BertEmbeddings"

function Embeddings:init(o)
  self.length = o.max_position_embeddings
  self.word_embeddings = nn.Embedding(o.vocab_size, o.hidden_size, {padding_idx = o.pad_token_id})
  self.position_embeddings = nn.Embedding(o.max_position_embeddings, o.hidden_size)
  self.token_type_embeddings = nn.Embedding(o.type_vocab_size, o.hidden_size)
  self.LayerNorm = norm(o)
  self.dropout = nn.Dropout(o.hidden_dropout_prob)
end

function Embeddings:forward(ids, types)
  if ids:dim() ~= 2 or ids:size(2) > self.length then
    caller.raise("BERT: ids are %s, wanted {batch, 1 to %d tokens}", tostring(ids.shape),
      self.length)
  end
  local positions = core.arange(ids:size(2), {device = ids.device})
  local x = self.word_embeddings(ids) + self.token_type_embeddings(types or core.ones_like(ids))
  return self.dropout(self.LayerNorm(x + self.position_embeddings(positions)))
end

--- All layers: x (B, T, hidden) -> (B, T, hidden).
local Encoder = nn.Module:extend "BertEncoder"

function Encoder:init(o)
  self.layer = nn.ModuleList()
  for _ = 1, o.num_hidden_layers do self.layer:append(Layer(o)) end
end

function Encoder:forward(x, mask)
  for _, layer in ipairs(self.layer) do x = layer(x, mask) end
  return x
end

--- BERT without a head: ids (B, T) -> (B, T, hidden).
local Model = nn.Module:extend "BertModel"

function Model:init(o)
  self.embeddings = Embeddings(o)
  self.encoder = Encoder(o)
end

local bind_call = options.call_signature("bert",
  "input_ids: tensor, attention_mask?: tensor, token_type_ids?: tensor")

-- ids (B, T) -> (B, T, hidden)
function Model:forward(...)
  local o = bind_call(...)
  local ids, mask = o.input_ids, o.attention_mask
  if mask then
    if tostring(mask.shape) ~= tostring(ids.shape) then
      caller.raise("BERT: attention_mask is %s, wanted the ids' shape %s", tostring(mask.shape),
        tostring(ids.shape))
    end
    mask = mask:to("bool"):reshape(ids:size(1), 1, 1, ids:size(2))
  end
  return self.encoder(self.embeddings(ids, o.token_type_ids), mask)
end

-- ---- the head ----

--- The layer before the scores: x (B, T, hidden) -> (B, T, hidden).
local Transform = nn.Module:extend "BertPredictionHeadTransform"

function Transform:init(o)
  self.dense = nn.Linear(o.hidden_size, o.hidden_size)
  self.LayerNorm = norm(o)
end

function Transform:forward(x) return self.LayerNorm(core.gelu(self.dense(x))) end

--- Scores of all words, with the weight of the word embeddings: (B, T, hidden) ->
--- (B, T, vocab_size).
local Predictions = nn.Module:extend "BertLMPredictionHead"

function Predictions:init(o, weight)
  self.bias = nn.Parameter(core.zeros(o.vocab_size))
  self.transform = Transform(o)
  self.decoder = TiedLinear(weight, self.bias)
end

function Predictions:forward(x) return self.decoder(self.transform(x)) end

--- The head, under the name that Hugging Face's files give it.
local Head = nn.Module:extend "BertOnlyMLMHead"

function Head:init(o, weight) self.predictions = Predictions(o, weight) end
function Head:forward(x) return self.predictions(x) end

--- BERT with its masked-word head: ids (B, T) -> scores (B, T, vocab_size).
local Bert = nn.Module:extend "BertForMaskedLM"

-- All weights normal, biases 0, the padding's row 0.
local function initialise(module)
  if module.class == "Linear" then
    nn.init.normal_(module.weight, 0, 0.02)
    nn.init.zeros_(module.bias)
  elseif module.class == "Embedding" then
    nn.init.normal_(module.weight, 0, 0.02)
    if module.padding_idx then nn.init.zeros_(module.weight.data[module.padding_idx]) end
  end
end

function Bert:init(o)
  if o.hidden_size % o.num_attention_heads ~= 0 then
    caller.raise("bert: %d heads do not divide hidden_size = %d", o.num_attention_heads,
      o.hidden_size)
  end
  self.bert = Model(o)
  self.cls = Head(o, self.bert.embeddings.word_embeddings.weight)
  self:apply(initialise)
end

function Bert:forward(ids, opts) return self.cls(self.bert(ids, opts)) end

-- Parts of Hugging Face's files that this model does not have.
local UNUSED = {"^bert%.pooler%.", "^cls%.seq_relationship%.", "%.position_ids$"}

local function is_unused(name)
  for _, pattern in ipairs(UNUSED) do
    if name:find(pattern) then return true end
  end
  return false
end

local TIED = {
  ["cls.predictions.decoder.weight"] = "bert.embeddings.word_embeddings.weight",
  ["cls.predictions.decoder.bias"] = "cls.predictions.bias",
}

--- Takes what Hugging Face's files hold too: names without "bert." of a model without a head,
--- gamma and beta for a norm's weight and bias, a pooler and the head of the next sentence, tied
--- tensors once.
function Bert.known_names(_, state)
  local own = {}
  for name, t in pairs(state) do
    if type(name) == "string" and not name:find "^bert%." and not name:find "^cls%." then
      name = "bert." .. name
    end
    if type(name) == "string" and not is_unused(name) then
      name = name:gsub("LayerNorm%.gamma$", "LayerNorm.weight")
      own[name:gsub("LayerNorm%.beta$", "LayerNorm.bias")] = t
    end
  end
  for name, source in pairs(TIED) do own[name] = own[name] or own[source] end
  return own
end

--- bert{vocab_size = 30522, hidden_size = 768, num_hidden_layers = 12,
--- num_attention_heads = 12, intermediate_size = 3072, max_position_embeddings = 512,
--- type_vocab_size = 2, hidden_dropout_prob = 0.1, attention_probs_dropout_prob = 0.1,
--- pad_token_id = 1} -> a module of token ids (B, T) that gives scores of the word at each
--- position (B, T, vocab_size); model.bert gives the input of the head, (B, T, hidden_size).
--- Options of a call: attention_mask (B, T), 1 or true where a token counts;
--- token_type_ids (B, T), from 1. Ids count from 1: Hugging Face's and one.
local bind = options.signature("bert", [[*, vocab_size: integer = 30522,
  hidden_size: integer = 768, num_hidden_layers: integer = 12, num_attention_heads: integer = 12,
  intermediate_size: integer = 3072, max_position_embeddings: integer = 512,
  type_vocab_size: integer = 2, hidden_dropout_prob: number = 0.1,
  attention_probs_dropout_prob: number = 0.1, pad_token_id: integer = 1]])
function bert.bert(...) return Bert(bind(...)) end

return bert
