-- The networks of train.lua and scale.lua with their optimizers, losses and batches, on the default
-- device: cases.cnn(128) -> {model =, optimizer =, criterion =, x =, y =}. networks.py has the same
-- ones for PyTorch. models.lua has more networks.
local dm = require "demilune"
local nn, optim, F = dm.nn, dm.optim, dm.nn.functional

local cases = {}

--- scripts/quantised_sine.lua: 1x1 convolutions on a grid of points.
function cases.sine(size, hidden)
  local here = arg[0]:match "^(.*)/" or "."
  local sine = assert(loadfile(here .. "/../quantised_sine.lua"))("workload")
  local device = dm.zeros(1).device
  local model = sine.model(hidden, device)
  local x, y = sine.problem(size, device)
  return { model = model, optimizer = optim.Adam(model:parameters(), { lr = 1e-3 }),
    criterion = nn.MSELoss(), x = x, y = y }
end

--- Images of 32x32 in 10 classes; the stem of torchvision or the one for such images.
--- It learns slowly, for with ten times the rate rounding alone parts two trainings.
function cases.resnet18(images, stem, side)
  local model = dm.models.resnet18 { num_classes = 10, small_stem = stem == "cifar" }
  return { model = model, criterion = nn.CrossEntropyLoss(),
    optimizer = optim.SGD(model:parameters(),
      { lr = 1e-3, momentum = 0.9, weight_decay = 1e-4 }),
    x = dm.randn(images, 3, side or 32, side or 32), y = dm.randint(10, { images }) }
end

--- The network of scripts/fashion_mnist.lua without its dropout.
function cases.cnn(images)
  local model = nn.Sequential {
    nn.Conv2d(1, 16, 3, { padding = 1, bias = false }), nn.BatchNorm2d(16),
    nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, { padding = 1, bias = false }), nn.BatchNorm2d(32),
    nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(32 * 7 * 7, 64), nn.ReLU(), nn.Linear(64, 10),
  }
  return { model = model, criterion = nn.CrossEntropyLoss(),
    optimizer = optim.AdamW(model:parameters(), { lr = 1e-3, weight_decay = 1e-2 }),
    x = dm.randn(images, 1, 28, 28), y = dm.randint(10, { images }) }
end

--- GPT-2, by default on 65 characters, without dropout.
function cases.gpt(layers, width, heads, context, rows, vocabulary)
  vocabulary = vocabulary or 65
  local model = dm.models.gpt2 { n_layer = layers, n_embd = width, n_head = heads,
    block_size = context, vocab_size = vocabulary, dropout = 0 }
  return { model = model,
    optimizer = optim.AdamW(model:parameters(), { lr = 3e-4, weight_decay = 0.1 }),
    criterion = function(scores, y) return F.cross_entropy(scores:flatten(1, 2), y:flatten()) end,
    x = dm.randint(vocabulary, { rows, context }), y = dm.randint(vocabulary, { rows, context }),
    -- scores and sums of values, of the half that a position sees
    more_flops = 3 * layers * 2 * rows * context * context * width }
end

function cases.lstm(layers, width, rows, steps)
  local Net = nn.Module:extend "Net"
  function Net:init()
    self.rnn = nn.LSTM(width, width, { num_layers = layers, batch_first = true })
    self.head = nn.Linear(width, 65)
  end
  function Net:forward(x) return self.head((self.rnn(x))) end
  local model = Net()
  return { model = model, optimizer = optim.Adam(model:parameters(), { lr = 1e-3 }),
    criterion = function(scores, y) return F.cross_entropy(scores:flatten(1, 2), y:flatten()) end,
    x = dm.randn(rows, steps, width), y = dm.randint(65, { rows, steps }) }
end

function cases.mlp(inputs, hidden, outputs, rows)
  local model = nn.Sequential { nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs) }
  return { model = model, criterion = nn.CrossEntropyLoss(),
    optimizer = optim.Adam(model:parameters(), { lr = 1e-3 }),
    x = dm.randn(rows, inputs), y = dm.randint(outputs, { rows }) }
end

for kind, case in pairs(require "models") do cases[kind] = case end

return cases
