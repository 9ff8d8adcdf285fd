-- Sequence to sequence with attention: a GRU reads digits, another writes them backwards.
local dm = require "demilune"
local nn, F, optim = dm.nn, dm.nn.functional, dm.optim
local SOS, EOS, VOCABULARY = 1, 2, 8

local EncoderRNN = nn.Module:extend "EncoderRNN"
function EncoderRNN:init(input_size, hidden_size)
  self.embedding = nn.Embedding(input_size, hidden_size)
  self.gru = nn.GRU(hidden_size, hidden_size, {batch_first = true})
  self.dropout = nn.Dropout(0.05)
end
function EncoderRNN:forward(input)
  local output, hidden = self.gru(self.dropout(self.embedding(input)))
  return output, hidden
end

local BahdanauAttention = nn.Module:extend "BahdanauAttention"
function BahdanauAttention:init(hidden_size)
  self.Wa = nn.Linear(hidden_size, hidden_size)
  self.Ua = nn.Linear(hidden_size, hidden_size)
  self.Va = nn.Linear(hidden_size, 1)
end
function BahdanauAttention:forward(query, keys)
  local scores = self.Va(dm.tanh(self.Wa(query) + self.Ua(keys)))
  scores = scores:squeeze(3):unsqueeze(2)
  local weights = F.softmax(scores, -1)
  return dm.bmm(weights, keys), weights
end

local AttnDecoderRNN = nn.Module:extend "AttnDecoderRNN"
function AttnDecoderRNN:init(hidden_size, output_size)
  self.embedding = nn.Embedding(output_size, hidden_size)
  self.attention = BahdanauAttention(hidden_size)
  self.gru = nn.GRU(2 * hidden_size, hidden_size, {batch_first = true})
  self.out = nn.Linear(hidden_size, output_size)
end
function AttnDecoderRNN:forward(encoder_outputs, encoder_hidden, length, target_tensor)
  local decoder_input = dm.empty(encoder_outputs:size(1), 1, {dtype = "long"}):fill_(SOS)
  local decoder_hidden, outputs, attentions = encoder_hidden, {}, {}
  for i = 1, length do
    local embedded = self.embedding(decoder_input)
    local context, weights = self.attention(decoder_hidden:permute(2, 1, 3), encoder_outputs)
    local output
    output, decoder_hidden = self.gru(dm.cat({embedded, context}, {dim = 3}), decoder_hidden)
    outputs[i], attentions[i] = self.out(output), weights
    if target_tensor then
      decoder_input = target_tensor[{{}, i}]:unsqueeze(2) -- teacher forcing
    else
      local _, topi = outputs[i]:topk(1)
      decoder_input = topi:squeeze(-1):detach()
    end
  end
  return F.log_softmax(dm.cat(outputs, {dim = 2}), {dim = -1}), dm.cat(attentions, {dim = 2})
end

return function(run)
  local source = dm.randint(3, VOCABULARY, {24, 4})
  local target = dm.cat({source:flip(2), dm.full({24, 1}, EOS, {dtype = "long"})}, 2)
  local encoder = EncoderRNN(VOCABULARY, 24):to(run.device)
  local decoder = AttnDecoderRNN(24, VOCABULARY):to(run.device)
  local params = encoder:parameters()
  table.move(decoder:parameters(), 1, #decoder:parameters(), #params + 1, params)
  local optimizer = optim.Adam(params, {lr = 0.02})
  local criterion = nn.NLLLoss()
  local losses = {}
  for i = 1, 20 do
    losses[i] = run.step(optimizer, function()
      local encoder_outputs, encoder_hidden = encoder(source)
      local decoder_outputs = decoder(encoder_outputs, encoder_hidden, 5, target)
      return criterion(decoder_outputs:view(-1, decoder_outputs:size(-1)), target:view(-1))
    end)
  end
  local _ <close> = dm.no_grad()
  local written, attention = decoder(encoder(source), select(2, encoder(source)), 5)
  assert(dm.allclose(attention:sum(-1), dm.ones(24, 5), {atol = 1e-5}))
  local right = written:argmax(-1):eq(target):float():mean():item()
  assert(right > 0.4, right)
  return losses
end
