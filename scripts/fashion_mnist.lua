-- Trains a small CNN on Fashion-MNIST, in mixed precision on the CPU unless
-- told otherwise. `scripts/run scripts/fashion_mnist.lua --help` lists the options;
-- `scripts/run -n 2 scripts/fashion_mnist.lua` trains it in two processes, and with --shards 4 its
-- checkpoint has the same bytes on one, two and four of them.

package.path = (arg[0]:match "^(.*)/" or ".") .. "/lib/?.lua;" .. package.path
local dm = require "demilune"
local command_line = require "command_line"
local nn, optim, data = dm.nn, dm.optim, dm.data

local parser, number = command_line.parser("fashion_mnist.lua",
  "Train a small CNN on Fashion-MNIST.")
command_line.precision(parser, "bfloat16")
number("epochs", math.tointeger, "5", "passes over the 60,000 images")
number("batch", math.tointeger, "128", "images in a step, of all processes")
number("lr", tonumber, "5e-3", "highest learning rate of the one-cycle schedule")
number("seed", math.tointeger, "1", "of the weights and of the order of the data")
number("workers", math.tointeger, "1", "threads that prepare batches")
number("shards", math.tointeger, "0", "parts of a batch: the same bits on any number of processes")
parser:option("--data", "folder with the four IDX files"):default(nil)
parser:option("--save", "where the checkpoint goes"):default "fashion.safetensors"
parser:option("--resume", "go on from this checkpoint; auto: from --save, if it is there")
  :argname "FILE"
local args = command_line.parse(parser)
local n_rank = command_line.ranks(args)

local shards = args.shards > 0 and args.shards or nil
local function dataset(train)
  return assert(dm.datasets.FashionMNIST(args.data, {train = train}))
end
local images = dataset(true)
local share = n_rank > 1 and not shards and data.DistributedSampler(images, {seed = args.seed})
  or nil
local train = data.DataLoader(images, {batch_size = share and args.batch // n_rank or args.batch,
  shuffle = not share, sampler = share, shards = shards, drop_last = true,
  num_workers = args.workers, seed = args.seed, device = args.device})
local test = data.DataLoader(dataset(false),
  {batch_size = 1000, num_workers = args.workers, device = args.device})

local model = nn.Sequential{
  nn.Conv2d(1, 16, 3, {padding = 1, bias = false}), nn.BatchNorm2d(16), nn.ReLU(),
  nn.MaxPool2d(2),
  nn.Conv2d(16, 32, 3, {padding = 1, bias = false}), nn.BatchNorm2d(32), nn.ReLU(),
  nn.MaxPool2d(2),
  nn.Flatten(), nn.Linear(32 * 7 * 7, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10),
}:to(args.device)
local trained = (n_rank > 1 or shards)
  and nn.parallel.DistributedDataParallel(model, {shards = shards}) or model
local optimizer = optim.AdamW(model:parameters(), {lr = args.lr, weight_decay = 1e-2})

local trainer = dm.Trainer{
  model = trained, loss = nn.CrossEntropyLoss(), optimizer = optimizer,
  schedule = optim.lr_scheduler.OneCycleLR(optimizer, args.lr,
    {total_steps = math.max(1, args.epochs * #train)}),
  device = args.device, amp = args.dtype, metrics = {accuracy = dm.metrics.Accuracy()},
  checkpoint = args.save,
  callbacks = {
    on_epoch_begin = function() dm.reset_peak_memory_stats(args.device) end,
    on_epoch_end = function() command_line.say("saved " .. args.save) end,
  },
  report = function(_, values)
    return ("epoch %d: train loss %.4f, test accuracy %.2f %%, peak memory %.1f MiB"):format(
      values.epoch, values.train_loss, 100 * values.valid_accuracy,
      dm.max_memory_allocated(args.device) / 2^20)
  end,
}
command_line.resume(trainer, args.resume)
command_line.say(model)
command_line.say(("seed %d, %s, batch %d, %s, %d threads%s"):format(args.seed, args.dtype,
  args.batch, args.device, dm.get_num_threads(),
  command_line.of_ranks(n_rank)))
command_line.run(function() trainer:fit{train = train, valid = test, epochs = args.epochs} end)
dm.distributed.destroy_process_group()
