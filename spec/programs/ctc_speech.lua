-- A speech toy: log-mel frames of tones, a bidirectional GRU, CTC loss and greedy decoding.
local dm = require "demilune"
local nn, F, optim = dm.nn, dm.nn.functional, dm.optim
local BLANK = 1

-- A wave of three tones of different pitch, and their labels 2, 3 or 4.
local function utterance(seed)
  local wave, labels = {}, {}
  for k = 1, 3 do
    labels[k] = (seed * k + seed // 3) % 3 + 2
    local t = dm.arange(0, 127):float()
    wave[k] = dm.sin(t * 2 * math.pi * labels[k] * 0.11) * dm.hann_window(128)
  end
  return dm.cat(wave), dm.tensor(labels)
end

local function spectrogram(wave)
  local frames = wave:unfold(-1, 32, 16) * dm.hann_window(32)
  local power = dm.fft.rfft(frames):pow(2):sum(-1)
  return dm.log(power + 1e-3)
end

local SpeechModel = nn.Module:extend "SpeechModel"
function SpeechModel:init(n_feats, n_hidden, n_class)
  self.norm = nn.LayerNorm(n_feats)
  self.rnn = nn.GRU(n_feats, n_hidden, {num_layers = 1, batch_first = true, bidirectional = true})
  self.classifier = nn.Linear(n_hidden * 2, n_class)
end
function SpeechModel:forward(x)
  x = self.rnn(self.norm(x))
  return self.classifier(x)
end

local function greedy_decode(log_probs)
  local decoded, last = {}, BLANK
  for _, id in ipairs(log_probs:argmax(-1):tolist()) do
    if id ~= BLANK and id ~= last then table.insert(decoded, id) end
    last = id
  end
  return decoded
end

return function(run)
  local specs, targets = {}, {}
  for i = 1, 8 do
    local wave, label = utterance(i)
    specs[i], targets[i] = spectrogram(wave), label
  end
  local inputs, labels = dm.stack(specs), dm.stack(targets)
  local input_lengths = dm.full({8}, inputs:size(2), {dtype = "long"})
  local target_lengths = dm.full({8}, 3, {dtype = "long"})
  local model = SpeechModel(inputs:size(3), 16, 4):to(run.device)
  local criterion = nn.CTCLoss{blank = BLANK, zero_infinity = true}
  local optimizer = optim.AdamW(model:parameters(), {lr = 0.03})
  local losses = {}
  for i = 1, 100 do
    losses[i] = run.step(optimizer, function()
      local output = F.log_softmax(model(inputs), {dim = 3}):transpose(1, 2)
      return criterion(output, labels, input_lengths, target_lengths)
    end)
  end
  model:eval()
  local right = 0
  for i, row in ipairs(model(inputs)) do
    if table.concat(greedy_decode(row), " ") == table.concat(labels[i]:tolist(), " ") then
      right = right + 1
    end
  end
  assert(right >= 2, right)
  return losses
end
