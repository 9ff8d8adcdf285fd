-- SNLI: embeddings and a bidirectional LSTM read two sentences; an MLP says how they relate.
local dm = require "demilune"
local nn, optim = dm.nn, dm.optim

local Encoder = nn.Module:extend "Encoder"
function Encoder:init(config)
  self.config = config
  self.rnn = nn.LSTM{input_size = config.d_proj, hidden_size = config.d_hidden,
    num_layers = config.n_layers, dropout = config.dp_ratio, bidirectional = config.birnn}
end
function Encoder:forward(inputs)
  local batch_size = inputs:size(2)
  local state_shape = {self.config.n_cells, batch_size, self.config.d_hidden}
  local h0 = inputs:new_zeros(state_shape)
  local _, state = self.rnn(inputs, {h0, h0})
  local ht = state[1]
  return ht[{{-2, -1}}]:transpose(1, 2):contiguous():view(batch_size, -1)
end

local SNLIClassifier = nn.Module:extend "SNLIClassifier"
function SNLIClassifier:init(config)
  self.embed = nn.Embedding(config.n_embed, config.d_embed, {padding_idx = 1})
  self.projection = nn.Linear(config.d_embed, config.d_proj)
  self.encoder = Encoder(config)
  self.relu = nn.ReLU()
  local width = 4 * config.d_hidden
  self.out = nn.Sequential(nn.Linear(width, width), self.relu, nn.Dropout{p = config.dp_ratio},
    nn.Linear(width, config.d_out))
end
function SNLIClassifier:forward(batch)
  local prem_embed, hypo_embed = self.embed(batch.premise), self.embed(batch.hypothesis)
  prem_embed = self.relu(self.projection(prem_embed))
  hypo_embed = self.relu(self.projection(hypo_embed))
  local premise, hypothesis = self.encoder(prem_embed), self.encoder(hypo_embed)
  return self.out(dm.cat({premise, hypothesis}, 2))
end

return function(run)
  local config = {n_embed = 12, d_embed = 12, d_proj = 12, d_hidden = 8, n_layers = 1, n_cells = 2,
    birnn = true, dp_ratio = 0.0, d_out = 2}
  -- sentences of five words, the last one padding; the hypothesis repeats the premise or turns it
  local premise = dm.randint(2, 12, {5, 16})
  premise[5] = 1
  local label = dm.randint(2, {16})
  local hypothesis = dm.where(label:eq(1), premise, 14 - premise)
  hypothesis[5] = 1
  local batch = {premise = premise, hypothesis = hypothesis}
  local model = SNLIClassifier(config):to(run.device)
  local criterion = nn.CrossEntropyLoss()
  local optimizer = optim.Adam(model:parameters(), {lr = 0.02})
  local losses = {}
  local answer ---@type any
  for i = 1, 20 do
    losses[i] = run.step(optimizer, function()
      answer = model(batch)
      return criterion(answer, label)
    end)
  end
  local _, guess = dm.max(answer, 2)
  local n_correct = guess:view(-1):eq(label):sum():item()
  assert(n_correct >= 12, n_correct)
  assert(model.embed.weight[1]:abs():sum():item() == 0, "padding stays zero")
  return losses
end
