-- Learns a column of a table from the others: a number (regression) or a word
-- (classification). `scripts/run scripts/tabular.lua --help` lists the options.
--
--   scripts/run scripts/tabular.lua --data housing.csv --target median_house_value
--   scripts/run scripts/tabular.lua --data adult.data --no-header --target column15

package.path = (arg[0]:match "^(.*)/" or ".") .. "/lib/?.lua;" .. package.path
local dm = require "demilune"
local command_line = require "command_line"
local nn, optim, data = dm.nn, dm.optim, dm.data

local parser, number = command_line.parser("tabular.lua",
  "Learn a column of a table from the others.")
parser:option("--data", "a CSV file, such as UCI's Adult or California's housing prices"):count(1)
parser:option("--target", "the column to learn: words are classes, numbers are numbers"):count(1)
parser:flag("--no-header", "columns have no names: they are column1, column2, ...")
number("epochs", math.tointeger, "10", "passes over the rows")
number("batch", math.tointeger, "128", "rows in a step")
number("hidden", math.tointeger, "64", "numbers in each of two hidden layers")
number("lr", tonumber, "2e-3", "highest learning rate")
number("seed", math.tointeger, "1", "of the split, the weights and the order")
command_line.precision(parser, "float32", "what matrix products compute in")
parser:option("--save", "where the checkpoint goes"):argname "FILE"
local args = command_line.parse(parser)

local function fail(message, ...)
  command_line.stop("tabular.lua: " .. message:format(...))
end

local rows, why = data.read_csv(args.data, {header = not args.no_header})
if not rows then fail("%s", why) end
local is_there = false
for _, name in ipairs(rows.names) do is_there = is_there or name == args.target end
if not is_there then
  fail("there is no column '%s'; there are %s", args.target, table.concat(rows.names, ", "))
end

-- ---- columns as numbers ----

-- Mean 0 and deviation 1 over the rows that have a number; blanks become 0.
local function standardised(column)
  local there = column:isnan():logical_not()
  local x = dm.where(there, column, dm.zeros_like(column))
  local n = there:sum():item()
  local mean = x:sum():item() / n
  local apart = dm.where(there, x - mean, dm.zeros_like(x))
  local deviation = math.sqrt(apart:square():sum():item() / n)
  return apart / math.max(deviation, 1e-12), mean, deviation
end

local inputs = {}
for _, name in ipairs(rows.names) do
  if name ~= args.target then
    if dm.is_tensor(rows[name]) then
      inputs[#inputs + 1] = standardised(rows[name]):float():unsqueeze(2)
    else
      local ids, words = rows:codes(name)
      inputs[#inputs + 1] = dm.one_hot(ids, #words):float()
    end
  end
end
local x = dm.cat(inputs, 2)
local y = rows[args.target]
local classes, mean, deviation
if dm.is_tensor(y) then
  y, mean, deviation = standardised(y)
  y = y:float():unsqueeze(2)
else
  y, classes = rows:codes(args.target)
end

-- ---- training ----

local train, valid = data.random_split(data.TensorDataset(x, y), {0.8, 0.2}, {seed = args.seed})
local loader = data.DataLoader(train, {batch_size = args.batch, shuffle = true, seed = args.seed})
local test = data.DataLoader(valid, {batch_size = 1024})

local width = x:size(2)
local model = nn.Sequential{
  nn.Linear(width, args.hidden), nn.ReLU(), nn.Dropout(0.1),
  nn.Linear(args.hidden, args.hidden), nn.ReLU(),
  nn.Linear(args.hidden, classes and #classes or 1),
}:to(args.device)
print(("%d rows, %d inputs, %s"):format(#rows, width,
  classes and ("%d classes"):format(#classes) or "one number"))
local optimizer = optim.AdamW(model:parameters(), {lr = args.lr, weight_decay = 1e-2})
local confusion = classes and dm.metrics.ConfusionMatrix{num_classes = #classes, names = classes}
local trainer = dm.Trainer{
  model = model, optimizer = optimizer, device = args.device,
  loss = classes and nn.CrossEntropyLoss() or nn.HuberLoss(),
  schedule = optim.lr_scheduler.OneCycleLR(optimizer, args.lr,
    {total_steps = math.max(1, args.epochs * #loader)}),
  amp = args.dtype,
  metrics = classes and {accuracy = dm.metrics.Accuracy()} or {}, checkpoint = args.save,
}
trainer:fit{train = loader, valid = test, epochs = args.epochs}

-- ---- results ----

local absolute = dm.metrics.Mean()
model:eval()
dm.no_grad(function()
  for _, a, b in test:iter() do
    local scores = model(a:to(args.device)):cpu()
    if confusion then confusion:update(scores, b)
    else absolute:update((scores - b):abs() * deviation) end
  end
end)
if confusion then
  print(confusion)
else
  print(("mean absolute error %.4g (%s is %.4g on average, with deviation %.4g)"):format(
    absolute:compute(), args.target, mean, deviation))
end
