-- Runs code that several threads share: the pool in ops of every kind, the loader's workers at
-- the same time, and the data of both. Each scenario gives the same bits with one thread and with
-- four. scripts/test --parts=threads runs this file under ThreadSanitizer, which reports races and
-- then sets the exit status. No scenario starts a program: the sanitizer would be preloaded there.

local dm = require "demilune"
local nn, optim, amp, data, transforms = dm.nn, dm.optim, dm.amp, dm.data, dm.transforms
local F = nn.functional

local FILE = os.tmpname()
local scenarios = {}

-- run(threads) -> a list of tensors
local function scenario(name, run) scenarios[#scenarios + 1] = {name = name, run = run} end

local function leaf(...) return dm.randn({...}, {requires_grad = true}) end

-- The results of f on these leaves, and their gradients.
local function both_ways(f, ...)
  local y = f(...)
  y:float():square():mean():backward()
  local out = {y:detach()}
  for _, t in ipairs{...} do out[#out + 1] = t.grad end
  return out
end

scenario("rows and columns", function()
  return both_ways(function(x, w)
    local y = (x:exp() + x * w):tanh():softmax(-1)
    return F.layer_norm(y, {512}, w, w) + y:sum(1, {keepdim = true}) + y:amax(2, {keepdim = true})
  end, leaf(300, 512), leaf(512))
end)

scenario("products", function()
  return both_ways(function(x, w)
    local y = x:matmul(w)
    return amp.autocast({device_type = "cpu", dtype = "bfloat16"}, function()
      return y:matmul(w):float() + y
    end)
  end, leaf(4, 96, 128), leaf(128, 128))
end)

scenario("convolutions of images", function()
  return both_ways(function(x, w, v, g)
    local y = F.relu(F.conv2d(x, w, nil, {padding = 1}))
    y = F.batch_norm(y, nil, nil, {weight = g, bias = g, training = true})
    y = F.max_pool2d(y, 2) + F.avg_pool2d(y, 2)
    return F.conv2d(y, v, nil, {stride = 2})
  end, leaf(4, 8, 32, 32), leaf(16, 8, 3, 3), leaf(16, 16, 3, 3), leaf(16))
end)

scenario("attention", function()
  return both_ways(function(q, k, v)
    return F.scaled_dot_product_attention(q, k, v, {is_causal = true})
  end, leaf(2, 4, 96, 32), leaf(2, 4, 96, 32), leaf(2, 4, 96, 32))
end)

scenario("a recurrent network", function()
  dm.manual_seed(3)
  local net = nn.LSTM(24, 32, {num_layers = 2})
  return both_ways(function(x) return (net(x)) end, leaf(20, 16, 24))
end)

scenario("indexing", function()
  local rows = dm.randint(64, {4096})
  local out = both_ways(function(x)
    local y = F.embedding(rows, x)
    return y:cumsum(1) + y:sort(1) + y:gather(1, rows:unsqueeze(2):expand(-1, 64))
  end, leaf(64, 64))
  out[#out + 1] = dm.fft.rfft(dm.randn(64, 256)):abs()
  return out
end)

scenario("chance", function()
  local x = dm.randn(70000)
  return {x, dm.rand(70000, {dtype = "float64"}), dm.bernoulli(dm.full({70000}, 0.3)),
    F.dropout(x, {p = 0.4, training = true})}
end)

scenario("steps of optimizers", function()
  local params = {leaf(256, 300), leaf(300), leaf(7)}
  local scaler = amp.GradScaler{device = "cpu", init_scale = 64.0}
  for _, optimizer in ipairs{optim.AdamW(params), optim.SGD(params, {lr = 0.1, momentum = 0.9})} do
    for _ = 1, 2 do
      optimizer:zero_grad()
      local loss = dm.zeros{}
      for _, p in ipairs(params) do loss = loss + p:square():sum() end
      scaler:scale(loss):backward()
      scaler:unscale_(optimizer)
      nn.utils.clip_grad_norm_(params, 1.0)
      scaler:step(optimizer)
      scaler:update()
    end
  end
  local out = {}
  for i, p in ipairs(params) do out[i] = p:detach() end
  return out
end)

-- Batches by workers, while this thread and the pool are busy with the one before.
local function epoch_of(set, threads, opts)
  opts.num_workers, opts.seed = threads - 1, 5
  local out = {}
  for i, x in data.DataLoader(set, opts):iter() do
    local wide = x:float():reshape(#x, -1)
    out[i] = wide:matmul(wide:t()) / wide:size(2) + wide:mean()
    dm.memory_allocated()
  end
  return out
end

scenario("a loader of tensors", function(threads)
  local x = dm.randn(400, 64)
  local out = epoch_of(data.TensorDataset(x), threads, {batch_size = 16, shuffle = true})
  for _, y in data.DataLoader(data.TensorDataset(x), {batch_size = 4,
    num_workers = threads - 1}):iter() do
    out[#out + 1] = y:clone()
    if #out == 30 then break end -- the workers still prefetch
  end
  return out
end)

scenario("a loader of images, and an observer of it", function(threads)
  local images = (dm.rand(96, 3, 24, 24) * 255):to "uint8"
  local set = data.TensorDataset(images, dm.arange(1, 96))
  local steps = {transforms.RandomCrop(24, {padding = 3}), transforms.RandomHorizontalFlip(),
    transforms.ToTensor(), transforms.Normalize({0.5, 0.5, 0.5}, {0.2, 0.2, 0.2})}
  function set.columns()
    return {{tensor = images, augment = transforms.declare(transforms.Compose(steps), 3, 24, 24)}}
  end
  local out
  dm.profiler.profile({profile_memory = true}, function()
    out = epoch_of(set, threads, {batch_size = 8, shuffle = true})
  end)
  return out
end)

scenario("a loader of files", function(threads)
  local set = dm.datasets.ImageFolder("spec/golden", {is_valid_file = function(path)
    return path:find "%.jpg$" or path:find "%.png$"
  end, allow_empty = true, transform = transforms.Compose{transforms.RandomResizedCrop(16),
    transforms.RandomHorizontalFlip(), transforms.ToTensor()}})
  local _, lacking = dm.read_image(set and set.samples[1][1] or "")
  if not set or lacking then return {} end -- built without libpng or libjpeg
  return epoch_of(set, threads, {batch_size = 3})
end)

scenario("a loader of tokens", function(threads)
  local f <close> = assert(io.open(FILE, "wb"))
  for i = 1, 4000 do f:write(("<I2"):pack(i * 7 % 65536)) end
  f:flush()
  local file = assert(data.TokenFile(FILE))
  return epoch_of(dm.text.Windows(file, {length = 32}), threads,
    {batch_size = 10, shuffle = true})
end)

local Products = data.Dataset:extend "Products"
function Products:init() self.x = dm.randn(60, 40, 40) end
function Products:len() return #self.x end
function Products:get(i) return self.x[i]:matmul(self.x[i]) + dm.rand(40) end
scenario("a loader of samples made in Lua", function(threads)
  return epoch_of(Products(), threads, {batch_size = 5, shuffle = true})
end)

-- The first difference of two lists of tensors, or nil.
local function difference(a, b)
  if #a ~= #b then return ("%d results with one thread, %d with four"):format(#a, #b) end
  for i, t in ipairs(a) do
    if not dm.equal(t, b[i]) then return ("result %d depends on the threads"):format(i) end
  end
end

local function check(s)
  local results = {}
  for _, threads in ipairs{1, 4} do
    dm.set_num_threads(threads)
    dm.manual_seed(1)
    results[threads] = s.run(threads)
  end
  return difference(results[1], results[4])
end

local only = arg and arg[1]
local passed, failed = 0, 0
for _, s in ipairs(scenarios) do
  if not only or s.name == only then
    local ok, problem = pcall(check, s)
    if ok and not problem then
      passed = passed + 1
    else
      failed = failed + 1
      print(("failed: %s: %s"):format(s.name, problem))
    end
  end
end
os.remove(FILE)
print(("%d passed, %d failed"):format(passed, failed))
os.exit(failed == 0 and passed > 0, true)
