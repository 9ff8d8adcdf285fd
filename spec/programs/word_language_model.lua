-- A word language model: LSTM, GRU or Transformer over batches of columns, with truncated
-- backpropagation through time and clipped gradients.
local dm = require "demilune"
local nn, F, optim = dm.nn, dm.nn.functional, dm.optim

local RNNModel = nn.Module:extend "RNNModel"
function RNNModel:init(rnn_type, ntoken, ninp, nhid, nlayers, dropout)
  self.drop = nn.Dropout(dropout)
  self.encoder = nn.Embedding(ntoken, ninp)
  self.rnn = nn[rnn_type](ninp, nhid, nlayers, {dropout = dropout})
  self.decoder = nn.Linear(nhid, ntoken)
  self.decoder.weight = self.encoder.weight -- tied
  nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
  nn.init.zeros_(self.decoder.bias)
  self.rnn_type, self.nhid, self.nlayers = rnn_type, nhid, nlayers
end
function RNNModel:forward(input, hidden)
  local emb = self.drop(self.encoder(input))
  local output
  output, hidden = self.rnn(emb, hidden)
  output = self.drop(output)
  local decoded = self.decoder(output)
  return F.log_softmax(decoded:view(-1, decoded:size(-1)), 2), hidden
end
function RNNModel:init_hidden(bsz)
  local weight = self:parameters()[1]
  local function zeros() return weight:new_zeros(self.nlayers, bsz, self.nhid) end
  if self.rnn_type == "LSTM" then return {zeros(), zeros()} end
  return zeros()
end

local PositionalEncoding = nn.Module:extend "PositionalEncoding"
function PositionalEncoding:init(d_model, max_len)
  local pe = dm.zeros(max_len, d_model)
  local position = dm.arange(0, max_len - 1):float():unsqueeze(2)
  local div_term = dm.exp(dm.arange(0, d_model - 1, 2):float() * (-math.log(10000.0) / d_model))
  pe[{{}, {1, d_model, 2}}] = dm.sin(position * div_term)
  pe[{{}, {2, d_model, 2}}] = dm.cos(position * div_term)
  self:register_buffer("pe", pe:unsqueeze(2))
end
function PositionalEncoding:forward(x) return x + self.pe[{{1, x:size(1)}}] end

local TransformerModel = nn.Module:extend "TransformerModel"
function TransformerModel:init(ntoken, ninp, nhead, nhid, nlayers)
  self.pos_encoder = PositionalEncoding(ninp, 32)
  self.input_emb = nn.Embedding(ntoken, ninp)
  self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(ninp, nhead, nhid, 0.0), nlayers)
  self.decoder = nn.Linear(ninp, ntoken)
  self.ninp = ninp
end
function TransformerModel:forward(src)
  local mask = dm.log(dm.tril(dm.ones(#src, #src)))
  src = self.pos_encoder(self.input_emb(src) * math.sqrt(self.ninp))
  local output = self.decoder(self.encoder(src, {mask = mask}))
  return F.log_softmax(output, -1):view(-1, output:size(-1))
end

local function batchify(ids, bsz)
  local nbatch = ids:size(1) // bsz
  return ids:narrow(1, 1, nbatch * bsz):view(bsz, -1):t():contiguous()
end

local function repackage_hidden(h)
  if dm.is_tensor(h) then return h:detach() end
  return {repackage_hidden(h[1]), repackage_hidden(h[2])}
end

return function(run)
  local ids = {}
  for i = 1, 200 do ids[i] = i * i % 7 + 1 end
  local source, bptt, losses = batchify(dm.tensor(ids, {dtype = "int64"}), 4), 8, {}
  for k, kind in ipairs{"LSTM", "GRU", "Transformer"} do
    local model = kind == "Transformer" and TransformerModel(7, 16, 2, 16, 1)
      or RNNModel(kind, 7, 16, 16, 2, 0.1)
    local criterion = nn.NLLLoss()
    local optimizer = optim.AdamW(model:parameters(), {lr = 0.02})
    local hidden = kind ~= "Transformer" and model:init_hidden(4)
    local i, first, last = 1, nil, nil
    for _ = 1, 14 do
      if i + bptt > #source then i = 1 end
      local x = source[{{i, i + bptt - 1}}]
      local target = source[{{i + 1, i + bptt}}]:reshape(-1)
      last = run.step(optimizer, function()
        if not hidden then return criterion(model(x), target) end
        local output
        output, hidden = model(x, repackage_hidden(hidden))
        return criterion(output, target)
      end, {clip = 0.25, model = model})
      first = first or last
      i = i + bptt
    end
    losses[k] = {first, last}
  end
  return table.unpack(losses)
end
