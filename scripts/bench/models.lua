-- More networks for train.lua, small ones of the kinds that people train, without dropout, in the
-- form of cases.lua: models.unet(4) -> {model =, optimizer =, criterion =, x =, y =}, of 4 samples.
-- models.py has the same ones for PyTorch, whose parameters have the same names.
local dm = require "demilune"
local nn, optim, F = dm.nn, dm.optim, dm.nn.functional

local models = {}

--- A module that init builds and forward applies.
local function class(name, init, forward)
  local M = nn.Module:extend(name)
  M.init, M.forward = init, forward
  return M
end

local function case(model, criterion, x, y)
  return {model = model, criterion = criterion, x = x, y = y,
    optimizer = optim.AdamW(model:parameters(), {lr = 1e-3, weight_decay = 1e-2})}
end

local function images(n, side) return dm.randn(n, 3, side, side) end
local function labels(classes, ...) return dm.randint(1, classes, {...}) end
local function to_classes(model, x)
  return case(model, nn.CrossEntropyLoss(), x, labels(10, x:size(1)))
end

--- The inverted residual block of MobileNetV2, 1x1, depthwise 3x3 and 1x1.
local Inverted = class("Inverted", function(self, inputs, outputs, stride)
  local wide = 4 * inputs
  self.residual = stride == 1 and inputs == outputs
  self.body = nn.Sequential{
    nn.Conv2d(inputs, wide, 1, {bias = false}), nn.BatchNorm2d(wide), nn.ReLU6(),
    nn.Conv2d(wide, wide, 3, {padding = 1, stride = stride, groups = wide, bias = false}),
    nn.BatchNorm2d(wide), nn.ReLU6(),
    nn.Conv2d(wide, outputs, 1, {bias = false}), nn.BatchNorm2d(outputs),
  }
end, function(self, x)
  local y = self.body(x)
  return self.residual and x + y or y
end)

function models.mobilenet(n)
  local model = nn.Sequential{
    nn.Conv2d(3, 32, 3, {padding = 1, stride = 2, bias = false}), nn.BatchNorm2d(32), nn.ReLU6(),
    Inverted(32, 32, 1), Inverted(32, 64, 2), Inverted(64, 64, 1), Inverted(64, 96, 2),
    Inverted(96, 96, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10),
  }
  return to_classes(model, images(n, 64))
end

--- The block of ConvNeXt: depthwise 7x7, and a network of two layers for each position.
local Next = class("Next", function(self, width)
  self.depthwise = nn.Conv2d(width, width, 7, {padding = 3, groups = width})
  self.norm = nn.LayerNorm(width)
  self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
end, function(self, x)
  local y = self.depthwise(x):permute(1, 3, 4, 2)
  y = self.down(F.gelu(self.up(self.norm(y))))
  return x + y:permute(1, 4, 2, 3)
end)

function models.convnext(n)
  local model = nn.Sequential{
    nn.Conv2d(3, 96, 4, {stride = 4}), Next(96), Next(96),
    nn.Conv2d(96, 192, 2, {stride = 2}), Next(192), Next(192),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(192, 10),
  }
  return to_classes(model, images(n, 64))
end

local function twice(inputs, outputs)
  return nn.Sequential{
    nn.Conv2d(inputs, outputs, 3, {padding = 1}), nn.BatchNorm2d(outputs), nn.ReLU(),
    nn.Conv2d(outputs, outputs, 3, {padding = 1}), nn.BatchNorm2d(outputs), nn.ReLU(),
  }
end

local UNet = class("UNet", function(self)
  self.down1, self.down2, self.middle = twice(3, 32), twice(32, 64), twice(64, 128)
  self.rise2, self.up2 = nn.ConvTranspose2d(128, 64, 2, {stride = 2}), twice(128, 64)
  self.rise1, self.up1 = nn.ConvTranspose2d(64, 32, 2, {stride = 2}), twice(64, 32)
  self.head = nn.Conv2d(32, 4, 1)
end, function(self, x)
  local a = self.down1(x)
  local b = self.down2(F.max_pool2d(a, 2))
  local c = self.middle(F.max_pool2d(b, 2))
  b = self.up2(dm.cat({b, self.rise2(c)}, 2))
  return self.head(self.up1(dm.cat({a, self.rise1(b)}, 2)))
end)

--- A class of four for each pixel.
function models.unet(n)
  return case(UNet(), nn.CrossEntropyLoss(), images(n, 64), labels(4, n, 64, 64))
end

local ViT = class("ViT", function(self, width, layers)
  self.patches = nn.Conv2d(3, width, 8, {stride = 8})
  self.position = nn.Parameter(dm.randn(1, 64, width) * 0.02)
  local layer = nn.TransformerEncoderLayer(width, width // 64, {dim_feedforward = 4 * width,
    dropout = 0, activation = "gelu", batch_first = true, norm_first = true})
  self.encoder = nn.TransformerEncoder(layer, layers)
  self.head = nn.Linear(width, 10)
end, function(self, x)
  x = self.patches(x):flatten(3):transpose(2, 3) + self.position
  return self.head(self.encoder(x):mean(2))
end)

function models.vit(n) return to_classes(ViT(192, 4), images(n, 64)) end

--- The MLP-Mixer: networks of two layers along positions, and along channels.
local Mix = class("Mix", function(self, width, positions)
  self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
  self.up1, self.down1 = nn.Linear(positions, 2 * positions), nn.Linear(2 * positions, positions)
  self.up2, self.down2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
end, function(self, x)
  x = x + self.down1(F.gelu(self.up1(self.norm1(x):transpose(2, 3)))):transpose(2, 3)
  return x + self.down2(F.gelu(self.up2(self.norm2(x))))
end)

local Mixer = class("Mixer", function(self)
  self.patches = nn.Conv2d(3, 128, 8, {stride = 8})
  self.layers = nn.Sequential{Mix(128, 64), Mix(128, 64), Mix(128, 64), Mix(128, 64)}
  self.head = nn.Linear(128, 10)
end, function(self, x)
  return self.head(self.layers(self.patches(x):flatten(3):transpose(2, 3)):mean(2))
end)

function models.mixer(n) return to_classes(Mixer(), images(n, 64)) end

--- Residual blocks with group norms and SiLU, as diffusion models have them.
local Grouped = class("Grouped", function(self, width)
  self.body = nn.Sequential{
    nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, {padding = 1}),
    nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, {padding = 1}),
  }
end, function(self, x) return x + self.body(x) end)

function models.groupnorm(n)
  local model = nn.Sequential{nn.Conv2d(3, 64, 3, {padding = 1}), Grouped(64), Grouped(64),
    Grouped(64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)}
  return to_classes(model, images(n, 32))
end

--- An autoencoder of strided convolutions with instance norms.
function models.autoencoder(n)
  local half = {stride = 2, padding = 1}
  local model = nn.Sequential{
    nn.Conv2d(3, 32, 4, half), nn.LeakyReLU(0.2),
    nn.Conv2d(32, 64, 4, half), nn.InstanceNorm2d(64), nn.LeakyReLU(0.2),
    nn.Conv2d(64, 128, 4, half), nn.InstanceNorm2d(128), nn.LeakyReLU(0.2),
    nn.ConvTranspose2d(128, 64, 4, half), nn.InstanceNorm2d(64), nn.ReLU(),
    nn.ConvTranspose2d(64, 32, 4, half), nn.ReLU(),
    nn.ConvTranspose2d(32, 3, 4, half), nn.Tanh(),
  }
  local x = images(n, 64):tanh()
  return case(model, nn.MSELoss(), x, x)
end

local Larger = class("Larger", function(self)
  self.first = nn.Conv2d(3, 32, 3, {padding = 1, stride = 2})
  self.second, self.last = nn.Conv2d(32, 32, 3, {padding = 1}), nn.Conv2d(32, 12, 3, {padding = 1})
end, function(self, x)
  local y = F.interpolate(F.relu(self.first(x)),
    {scale_factor = 2, mode = "bilinear", align_corners = false})
  return F.pixel_shuffle(self.last(F.relu(self.second(y))), 2)
end)

--- Images of twice the side.
function models.superresolution(n)
  return case(Larger(), nn.L1Loss(), images(n, 64), images(n, 128))
end

function models.volumes(n)
  local model = nn.Sequential{
    nn.Conv3d(1, 16, 3, {padding = 1}), nn.BatchNorm3d(16), nn.ReLU(), nn.MaxPool3d(2),
    nn.Conv3d(16, 32, 3, {padding = 1}), nn.BatchNorm3d(32), nn.ReLU(),
    nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(32, 10),
  }
  return to_classes(model, dm.randn(n, 1, 24, 24, 24))
end

--- Dilated convolutions with gates, as WaveNet has them.
local Gate = class("Gate", function(self, width, dilation)
  self.gates = nn.Conv1d(width, 2 * width, 3, {padding = dilation, dilation = dilation})
  self.mix = nn.Conv1d(width, width, 1)
end, function(self, x)
  local halves = self.gates(x):chunk(2, 2)
  return x + self.mix(halves[1]:tanh() * halves[2]:sigmoid())
end)

function models.wavenet(n)
  local model = nn.Sequential{nn.Conv1d(1, 64, 1), Gate(64, 1), Gate(64, 2), Gate(64, 4),
    Gate(64, 8), Gate(64, 16), Gate(64, 32), nn.Conv1d(64, 16, 1)}
  return case(model, nn.CrossEntropyLoss(), dm.randn(n, 1, 1024), labels(16, n, 1024))
end

local Reader = class("Reader", function(self)
  self.embedding = nn.Embedding(1000, 128)
  self.rnn = nn.GRU(128, 256, {num_layers = 2, batch_first = true, bidirectional = true})
  self.head = nn.Linear(512, 10)
end, function(self, ids) return self.head((self.rnn(self.embedding(ids))):mean(2)) end)

--- Texts of 50 tokens.
function models.gru(n) return to_classes(Reader(), labels(1000, n, 50)) end

local Translator = class("Translator", function(self, width)
  self.embedding = nn.Embedding(1000, width)
  self.transformer = nn.Transformer{d_model = width, nhead = 4, num_encoder_layers = 2,
    num_decoder_layers = 2, dim_feedforward = 4 * width, dropout = 0, batch_first = true}
  self.head = nn.Linear(width, 1000)
end, function(self, ids)
  local x, mask = self.embedding(ids), nn.Transformer.generate_square_subsequent_mask(ids:size(2))
  return self.head(self.transformer(x, x, {tgt_mask = mask}))
end)

--- Sentences of 64 tokens.
function models.transformer(n)
  local function criterion(scores, y) return F.cross_entropy(scores:flatten(1, 2), y:flatten()) end
  return case(Translator(256), criterion, labels(1000, n, 64), labels(1000, n, 64))
end

local Recommender = class("Recommender", function(self)
  self.users, self.items = nn.Embedding(50000, 64), nn.Embedding(50000, 64)
  self.body = nn.Sequential{nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(),
    nn.Linear(64, 1)}
end, function(self, pairs_of_ids)
  local users, items = self.users(pairs_of_ids:select(2, 1)), self.items(pairs_of_ids:select(2, 2))
  return self.body(dm.cat({users, items}, 2)):squeeze(2)
end)

function models.recommender(n)
  return case(Recommender(), nn.BCEWithLogitsLoss(), labels(50000, n, 2), dm.rand(n))
end

return models
