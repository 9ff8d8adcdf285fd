-- Trains a U-Net (O. Ronneberger et al. 2015) to find things in images, pixel by pixel.
-- The images are made as they are needed: one to three pieces of clothing of Fashion-MNIST
-- at random positions on a grainy background; the label of each pixel is the background or
-- one of ten kinds. `scripts/run scripts/segment.lua --help` lists the options.

package.path = (arg[0]:match "^(.*)/" or ".") .. "/lib/?.lua;" .. package.path
local dm = require "demilune"
local command_line = require "command_line"
local nn, optim, data = dm.nn, dm.optim, dm.data

local parser, number = command_line.parser("segment.lua",
  "Train a U-Net to find pieces of clothing, pixel by pixel.")
parser:option("--data", "folder with Fashion-MNIST's four IDX files"):default(nil)
number("images", math.tointeger, "2000", "images in an epoch")
number("epochs", math.tointeger, "5", "passes over so many new images")
number("batch", math.tointeger, "16", "images in a step")
number("side", math.tointeger, "64", "height and width of a image, a multiple of 8")
number("width", math.tointeger, "16", "channels at full size")
number("lr", tonumber, "3e-3", "highest learning rate")
number("seed", math.tointeger, "1", "of weights and images")
command_line.precision(parser, "float32", "what convolutions compute in")
parser:option("--save", "where the checkpoint goes"):argname "FILE"
local args = command_line.parse(parser)

local function source(train)
  local set, why = dm.datasets.FashionMNIST(args.data, {train = train})
  return set or command_line.stop("segment.lua: " .. why)
end

-- ---- images ----

local KINDS, ITEM = 11, 28 -- the background and ten kinds of clothing; the side of an item

-- Sample i is x float32 (1, side, side) in 0..1 and y int64 (side, side), kinds from 1. The
-- same i gives another image in each epoch, drawn from the generator of this data set.
local Scenes = data.Dataset:extend "Scenes"
function Scenes:init(set, count, seed)
  self.set, self.count, self.generator = set, count, dm.Generator()
  self.generator:manual_seed(seed)
end
function Scenes:len() return self.count end

function Scenes:draw(low, high)
  return dm.randint(low, high, {1}, {generator = self.generator, device = "cpu"}):item()
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
    local background = x:narrow(2, row, ITEM):narrow(3, column, ITEM)
    background:copy_(dm.where(is_item, item, background))
    local kinds = y:narrow(1, row, ITEM):narrow(2, column, ITEM)
    kinds:copy_(dm.where(is_item, self.set.labels[k] + 1, kinds))
  end
  return dm.keep(x, y)
end

local train = data.DataLoader(Scenes(source(true), args.images, args.seed),
  {batch_size = args.batch, drop_last = true})
local valid = data.DataLoader(Scenes(source(false), math.max(args.batch, args.images // 10),
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

-- The mean intersection over union of the kinds that occur.
local function overlap()
  local m = confusion:compute():cpu():double()
  local hits = m:diagonal()
  local union = m:sum(1) + m:sum(2) - hits
  return (hits / union)[union:gt(0)]:mean():item()
end

local trainer = dm.Trainer{
  model = model, optimizer = optimizer, device = args.device, checkpoint = args.save,
  amp = args.dtype,
  schedule = optim.lr_scheduler.OneCycleLR(optimizer, args.lr,
    {total_steps = math.max(1, args.epochs * #train)}),
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
