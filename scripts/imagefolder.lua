-- Trains a classifier on one's own images: a folder with a folder of JPEG or PNG files for
-- each class. `scripts/run scripts/imagefolder.lua --help` lists the options.
--
-- DIR/train is the training set and DIR/val or DIR/test the test set. Without these a fifth
-- of the images is the test set. Threads read, decode, resize, crop and mirror the images
-- while the model works.

package.path = (arg[0]:match "^(.*)/" or ".") .. "/lib/?.lua;" .. package.path
local dm = require "demilune"
local command_line = require "command_line"
local image_folders = require "image_folders"
local nn, optim, data, transforms = dm.nn, dm.optim, dm.data, dm.transforms

local parser, number = command_line.parser("imagefolder.lua",
  "Train a classifier on folders of images.")
parser:option("--data", "a folder with a folder of images for each class, or with train and "
  .. "val of that kind"):args(1)
parser:option("--model", "the network"):choices{"cnn", "resnet18"}:default "cnn"
command_line.precision(parser, "float32")
number("size", math.tointeger, "64", "side of the square that the network sees")
number("epochs", math.tointeger, "10", "passes over the images")
number("batch", math.tointeger, "64", "images in a step")
number("lr", tonumber, "0.001", "the first learning rate of a cosine schedule, for AdamW")
number("seed", math.tointeger, "1", "of the weights, the split and the order of the data")
number("workers", math.tointeger, "2", "threads that prepare batches")
number("limit", math.tointeger, nil, "so many images of training and of test, for a try")
parser:option("--save", "where the weights go, as safetensors"):default(nil)
local args = command_line.parse(parser)
if not args.data then command_line.stop "--data DIR is wanted; --help tells more" end

-- ---- images ----

local to_floats = transforms.Compose{transforms.ToTensor(), transforms.Normalize(0.5, 0.25)}
local augmented = transforms.Compose{transforms.Resize(args.size),
  transforms.RandomCrop(args.size, {padding = args.size // 8}),
  transforms.RandomHorizontalFlip(), to_floats}
local plain = transforms.Compose{transforms.Resize(args.size), transforms.CenterCrop(args.size),
  to_floats}

local classes, train_set, test_set = image_folders.split(args.data,
  {train = augmented, test = plain, seed = args.seed})
if not classes then command_line.stop(train_set) end

local function loader(set, shuffle)
  return data.DataLoader(image_folders.limited(set, args.limit, args.seed),
    {batch_size = args.batch, shuffle = shuffle, num_workers = args.workers, seed = args.seed,
      device = args.device})
end
local train, test = loader(train_set, true), loader(test_set, false)

-- ---- the network and what trains it ----

local function cnn(n_classes)
  local function block(inputs, outputs)
    return nn.Sequential{nn.Conv2d(inputs, outputs, 3, {padding = 1, bias = false}),
      nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)}
  end
  return nn.Sequential{block(3, 32), block(32, 64), block(64, 128), nn.AdaptiveAvgPool2d(1),
    nn.Flatten(), nn.Dropout(0.2), nn.Linear(128, n_classes)}
end

local model = (args.model == "cnn" and cnn(#classes) or dm.models.resnet18{
  num_classes = #classes, small_stem = args.size <= 64}):to(args.device)
local optimizer = optim.AdamW(model:parameters(), {lr = args.lr, weight_decay = 0.05})
local began
local trainer = dm.Trainer{
  model = model, loss = nn.CrossEntropyLoss(), optimizer = optimizer,
  schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs),
  schedule_every = "epoch",
  device = args.device, amp = args.dtype, metrics = {accuracy = dm.metrics.Accuracy()},
  callbacks = {
    on_epoch_begin = function() began = dm.now() end,
    on_train_epoch_end = function(_, values)
      values.rate = train.n_samples / (dm.now() - began)
    end,
  },
  report = function(_, values)
    return ("Epoch %d: loss = %.4f, test accuracy %.2f %%, %.0f images/s"):format(values.epoch,
      values.train_loss, 100 * values.valid_accuracy, values.rate)
  end,
}

print(("%s: %d classes, %d images to train on and %d to test on"):format(args.data, #classes,
  train.n_samples, test.n_samples))
print(("%s, %d x %d, seed %d, %s, batch %d, %s, %d workers"):format(args.model, args.size,
  args.size, args.seed, args.dtype, args.batch, args.device, args.workers))
trainer:fit{train = train, valid = test, epochs = args.epochs}
if args.save then
  local ok, problem = dm.save(args.save, model:state_dict())
  if not ok then command_line.stop(problem) end
  print(("saved %s"):format(args.save))
end
