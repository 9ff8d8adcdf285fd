-- Trains two networks against each other on images of 28x28: `maker`, the generator, makes
-- images from noise, and `judge`, the discriminator, tells them from real ones (I. Goodfellow
-- et al. 2014; convolutions after A. Radford et al. 2015). Each has its optimizer; one
-- GradScaler serves both.
-- `scripts/run scripts/gan.lua --help` lists the options.

package.path = (arg[0]:match "^(.*)/" or ".") .. "/lib/?.lua;" .. package.path
local dm = require "demilune"
local command_line = require "command_line"
local nn, optim, amp, data = dm.nn, dm.optim, dm.amp, dm.data

local parser, number = command_line.parser("gan.lua",
  "Let two networks learn from each other to invent images.")
parser:option("--data", "folder with MNIST's or Fashion-MNIST's four IDX files"):default(nil)
number("epochs", math.tointeger, "5", "passes over the images")
number("steps", math.tointeger, "0", "stop after so many steps; 0: at the end of the epochs")
number("batch", math.tointeger, "64", "images in a step")
number("noise", math.tointeger, "64", "numbers that an image is invented from")
number("width", math.tointeger, "32", "channels of the narrowest layer")
number("lr", tonumber, "2e-4", "learning rate of both")
number("seed", math.tointeger, "1", "of the weights, the order and the noise")
number("every", math.tointeger, "100", "steps between lines")
command_line.precision(parser, "float32", "what convolutions compute in")
parser:option("--images", "where a sheet of 64 inventions goes"):default "gan.png"
local args = command_line.parse(parser)

local set, why = dm.datasets.FashionMNIST(args.data, {train = true, normalize = {0.5, 0.5}})
if not set then command_line.stop("gan.lua: " .. why) end
local loader = data.DataLoader(set, {batch_size = args.batch, shuffle = true, drop_last = true,
  num_workers = 1, seed = args.seed, device = args.device})

local w = args.width
-- noise (N, Z, 1, 1) -> images (N, 1, 28, 28) from -1 to 1
local maker = nn.Sequential{
  nn.ConvTranspose2d(args.noise, 4 * w, 7, {bias = false}), nn.BatchNorm2d(4 * w), nn.ReLU(),
  nn.ConvTranspose2d(4 * w, 2 * w, 4, {stride = 2, padding = 1, bias = false}),
  nn.BatchNorm2d(2 * w), nn.ReLU(),
  nn.ConvTranspose2d(2 * w, 1, 4, {stride = 2, padding = 1}), nn.Tanh(),
}:to(args.device)
-- images -> a score (N): above 0 looks real
local judge = nn.Sequential{
  nn.Conv2d(1, w, 4, {stride = 2, padding = 1}), nn.LeakyReLU(0.2),
  nn.Conv2d(w, 2 * w, 4, {stride = 2, padding = 1, bias = false}), nn.BatchNorm2d(2 * w),
  nn.LeakyReLU(0.2),
  nn.Flatten(), nn.Linear(2 * w * 7 * 7, 1),
}:to(args.device)
for _, model in ipairs{maker, judge} do
  model:apply(function(m)
    if m.class:find "^Conv" then nn.init.normal_(m.weight, 0, 0.02) end
  end)
end

local opts = {lr = args.lr, betas = {0.5, 0.999}}
local maker_optimizer = optim.Adam(maker:parameters(), opts)
local judge_optimizer = optim.Adam(judge:parameters(), opts)
local scaler = amp.GradScaler{device = args.device, enabled = args.dtype == "float16"}
local criterion = nn.BCEWithLogitsLoss()
local half = args.dtype ~= "float32"
local region = {device_type = args.device, enabled = half, dtype = half and args.dtype or nil}

local on = {device = args.device}
local real, made = dm.ones({args.batch, 1}, on), dm.zeros({args.batch, 1}, on)
local function noise(n) return dm.randn({n, args.noise, 1, 1}, on) end

-- One step of each: the judge scores real and invented images; then the maker's loss is how
-- far the judge is from taking its images for real ones.
local function step(x)
  local _ <close> = dm.scope()
  local images, right, wrong, fooled
  judge_optimizer:zero_grad()
  do
    local _ <close> = amp.autocast(region)
    images = maker(noise(args.batch))
    right, wrong = criterion(judge(x), real), criterion(judge(images:detach()), made)
  end
  scaler:scale(right + wrong):backward()
  scaler:step(judge_optimizer)
  maker_optimizer:zero_grad()
  do
    local _ <close> = amp.autocast(region)
    fooled = criterion(judge(images), real)
  end
  scaler:scale(fooled):backward()
  scaler:step(maker_optimizer)
  scaler:update()
  return (right + wrong):item(), fooled:item()
end

local fixed = dm.keep(noise(64))
local function save_sheet()
  maker:eval()
  local sheet = dm.no_grad(function() return maker(fixed):float():cpu() end)
  maker:train()
  assert(dm.save_image(sheet, args.images, {nrow = 8, normalize = true, value_range = {-1, 1}}))
end

local done, began = 0, dm.now()
local judge_mean, maker_mean = dm.metrics.Mean(), dm.metrics.Mean()
for _ = 1, args.epochs do
  for _, x in loader:iter() do
    local a, b = step(x)
    judge_mean:update(a)
    maker_mean:update(b)
    done = done + 1
    if done % args.every == 0 or done == args.steps then
      print(("step %d: judge %.3f, maker %.3f, %.0f images/s"):format(done,
        judge_mean:compute(), maker_mean:compute(), done * args.batch / (dm.now() - began)))
      judge_mean:reset()
      maker_mean:reset()
    end
    if done == args.steps then break end
  end
  save_sheet()
  if done == args.steps then break end
end
print("saved " .. args.images)
