-- A language model of embeddings, LSTM layers and a linear head. W. Zaremba et al. 2014.

local nn = require "demilune.nn"
local options = require "demilune.options"
local generate = require "demilune.models.generate"

local lstm = {}

--- ids (B, T) -> scores of the next token (B, T, vocab_size).
local LanguageModel = nn.Module:extend "LSTMLanguageModel"

function LanguageModel:init(o)
  self.block_size = o.block_size
  self.embedding = nn.Embedding(o.vocab_size, o.width)
  self.drop = nn.Dropout(o.dropout)
  self.rnn = nn.LSTM(o.width, o.width, {num_layers = o.n_layer, batch_first = true,
    dropout = o.n_layer > 1 and o.dropout or 0})
  self.head = nn.Linear(o.width, o.vocab_size)
end

function LanguageModel:forward(ids)
  local y = self.rnn(self.drop(self.embedding(ids)))
  return self.head(self.drop(y))
end

--- generate(ids, n, {temperature = 1, top_k = 50, generator =}) -> ids with n more in each
--- row; the last block_size of them are read anew for each.
function LanguageModel:generate(...)
  return generate(self, self.block_size, ...)
end

--- lstm_lm{vocab_size =, n_layer = 2, width = 256, block_size = 256, dropout = 0} -> a module
--- of token ids (B, T) that gives scores of the next token (B, T, vocab_size).
local bind = options.signature("lstm_lm", [[*, vocab_size: integer = 50257,
  n_layer: integer = 2, width: integer = 256, block_size: integer = 256, dropout: number = 0.0]])
function lstm.lstm_lm(...) return LanguageModel(bind(...)) end

return lstm
