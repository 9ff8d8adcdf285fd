-- Trains a U-Net (O. Ronneberger et al. 2015) to find things in pictures, pixel by pixel.
-- The pictures are made as they are needed: pieces of clothing of Fashion-MNIST, one to
-- three, in places drawn at random on a grainy ground; the answer is the kind of each
-- pixel: ground, or one of ten. `scripts/run scripts/segment.lua --help` lists the options.

local dm = require "demilune"
local argparse = require "argparse"
local nn, optim, data = dm.nn, dm.optim, dm.data

local parser = argparse("segment.lua", "Train a U-Net to find pieces of clothing, pixel by pixel.")
local function number(name, convert, default, about)
  parser:option("--" .. name, about):convert(convert):default(default)
end
parser:option("--data", "folder with Fashion-MNIST's four IDX files"):default(nil)
number("pictures", math.tointeger, "2000", "pictures in an epoch")
number("epochs", math.tointeger, "5", "passes over so many new pictures")
number("batch", math.tointeger, "16", "pictures in a step")
number("side", math.tointeger, "64", "height and width of a picture, a multiple of 8")
number("width", math.tointeger, "16", "channels at full size")
number("lr", tonumber, "3e-3", "highest learning rate")
number("seed", math.tointeger, "1", "of weights and pictures")
parser:option("--dtype", "what convolutions compute in")
  :choices{"float32", "bfloat16", "float16"}:default "float32"
parser:option("--device", "cpu or cuda"):default(dm.cuda.is_available() and "cuda" or "cpu")
parser:option("--save", "where the checkpoint goes"):argname "FILE"
local args = parser:parse()
dm.manual_seed(args.seed)

local function source(train)
  local set, why = dm.datasets.FashionMNIST(args.data, {train = train})
  if not set then
    io.stderr:write("segment.lua: ", why, "\n")
    os.exit(1)
  end
  return set
end

-- ---- pictures ----

local KINDS, ITEM = 11, 28 -- the ground and ten pieces; an item's side

-- Sample i is x float32 (1, side, side) in 0..1 and y int64 (side, side), kinds from 1. The
-- same i gives other pictures in each epoch, drawn from a generator of this set's own.
local Scenes = data.Dataset:extend "Scenes"
function Scenes:init(set, count, seed)
  self.set, self.count, self.generator = set, count, dm.Generator()
  self.generator:manual_seed(seed)
end
function Scenes:len() return self.count end

function Scenes:draw(low, high)
  return dm.randint(low, high + 1, {1}, {generator = self.generator, device = "cpu"}):item()
end

function Scenes:get()
  local _ <close> = dm.scope()
  local side = args.side
  local on = {device = "cpu", generator = self.generator}
  local x = dm.rand({1, side, side}, on) * 0.3
  local y = dm.ones({side, side}, {dtype = "int64", device = "cpu"})
  for _ = 1, self:draw(1, 3) do
    local k = self:draw(1, #self.set.labels)
    local item = self.set.images[k]:float() / 255
    local row, column = self:draw(1, side - ITEM + 1), self:draw(1, side - ITEM + 1)
    local is_item = item[1]:gt(0.1)
    local ground = x:narrow(2, row, ITEM):narrow(3, column, ITEM)
    ground:copy_(dm.where(is_item, item, ground))
    local kinds = y:narrow(1, row, ITEM):narrow(2, column, ITEM)
    kinds:copy_(dm.where(is_item, self.set.labels[k] + 1, kinds))
  end
  return dm.keep(x, y)
end

local train = data.DataLoader(Scenes(source(true), args.pictures, args.seed),
  {batch_size = args.batch, drop_last = true})
local valid = data.DataLoader(Scenes(source(false), math.max(args.batch, args.pictures // 10),
  args.seed + 1), {batch_size = args.batch})

-- ---- training ----

local model = dm.models.unet{num_classes = KINDS, in_channels = 1, width = args.width, depth = 3}
  :to(args.device)
local optimizer = optim.AdamW(model:parameters(), {lr = args.lr})
local confusion = dm.metrics.ConfusionMatrix{num_classes = KINDS}

-- Scores (N, K, H, W) as (N H W, K), labels as (N H W).
local function by_pixel(scores, y)
  return scores:permute(1, 3, 4, 2):flatten(1, 3), y:flatten()
end

-- The mean over kinds of: pixels that are of it and are called so, of those that are either.
local function overlap()
  local m = confusion:compute():cpu():double()
  local hits = m:diagonal()
  local either = m:sum(1) + m:sum(2) - hits
  local seen = either:gt(0)
  return (hits / either)[seen]:mean():item()
end

local trainer = dm.Trainer{
  model = model, optimizer = optimizer, device = args.device, checkpoint = args.save,
  amp = args.dtype ~= "float32" and args.dtype or nil,
  schedule = optim.lr_scheduler.OneCycleLR(optimizer, args.lr,
    {total_steps = args.epochs * #train}),
  forward = function(net, x, y)
    local scores, kinds = by_pixel(net(x), y)
    local loss = nn.functional.cross_entropy(scores, kinds)
    if not net.training then confusion:update(scores, kinds) end
    return loss
  end,
  callbacks = {
    on_epoch_begin = function() confusion:reset() end,
    on_epoch_end = function(_, values)
      print(("mean overlap of kinds in epoch %d: %.3f"):format(values.epoch, overlap()))
    end,
  },
}
trainer:fit{train = train, valid = valid, epochs = args.epochs}
