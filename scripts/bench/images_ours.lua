-- This project's side of images.lua; the other side is images_peer.py.
local dm = require "demilune"
local T = dm.transforms

local STEPS = {
  small = { T.RandomCrop(32, { padding = 4 }) },
  photos = { T.Resize(72), T.RandomCrop(64) },
}
local loader, n

-- begin KIND WORKERS IMAGES FOLDER
local function begin(kind, workers, images, folder)
  local set = assert(dm.datasets.ImageFolder(folder, { transform = T.Compose {
    T.Compose(STEPS[kind]), T.RandomHorizontalFlip(), T.ToTensor(),
    T.Normalize({ 0.49, 0.48, 0.45 }, { 0.25, 0.24, 0.26 }) } }))
  n = math.min(#set, images)
  local indices = {}
  for i = 1, n do indices[i] = 1 + (i - 1) * #set // n end
  loader = dm.data.DataLoader(set, { batch_size = 128, num_workers = workers,
    sampler = dm.data.SubsetRandomSampler(indices) })
  return { n = n }
end

local function round()
  local start, seen = dm.now(), 0
  for _, x in loader:iter() do seen = seen + #x end
  assert(seen == n)
  return { rate = n / (dm.now() - start) }
end

dofile((arg[0]:match "^(.*)/[^/]*$" or ".") .. "/answers.lua") { begin = begin, round = round }
