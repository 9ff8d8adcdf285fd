-- Launches of a training step, counted on the emulated device: forward, backward, GradScaler
-- (float16) and optimizer, of models with all their layers and small widths, on which launches do
-- not depend.
--   cmake -S . -B build/emu -G Ninja -DWITH_CUDA=emulated && ninja -C build/emu
--   lua5.4 scripts/bench/launches.lua [--names] [--only resnet18]    (with build/emu's module)
-- --names lists the kernels and library functions of each step, the most frequent first.
local lib = dofile((arg[0]:match("^(.*)/[^/]*$") or ".") .. "/lib.lua")
local dm = require "demilune"
local cases = require "cases"
local amp, nn, optim, F = dm.amp, dm.nn, dm.optim, dm.nn.functional

local options = lib.options{names = false, only = "", warm = 2}

if not dm.cuda.is_available() or not dm.cuda._count "launch" then
  print "launches: only the emulated device counts them (-DWITH_CUDA=emulated)"
  os.exit(true)
end
local _ <close> = dm.device "cuda" -- all tensors of this file

-- A case of cases.lua from a model, its optimizer's class and options, and a batch.
local function case(model, class, opts, criterion, x, y)
  return {model = model, optimizer = optim[class](model:parameters(), opts),
    criterion = criterion, x = x, y = y}
end

local function tokens(scores, y) return F.cross_entropy(scores:flatten(1, 2), y:flatten()) end

local ADAMW = {lr = 3e-4, weight_decay = 0.1}

-- Each: name, dtype of autocast, largest norm of the gradients or nil, and the case.
local CASES = {
  {"resnet18, small stem, SGD", "float16", nil, function()
    local model = dm.models.resnet18{num_classes = 10, small_stem = true}
    return case(model, "SGD", {lr = 1e-3, momentum = 0.9}, nn.CrossEntropyLoss(),
      dm.randn(2, 3, 8, 8), dm.randint(10, {2}))
  end},
  {"gpt2, 12 layers, AdamW, clip", "bfloat16", 1.0, function()
    local model = dm.models.gpt2{n_layer = 12, n_embd = 16, n_head = 2, block_size = 8,
      vocab_size = 64, dropout = 0}
    return case(model, "AdamW", ADAMW, tokens, dm.randint(64, {2, 8}), dm.randint(64, {2, 8}))
  end},
  {"quantised sine, Adam", "float16", nil, function() return cases.sine(4, 16) end},
  {"mlp, Adam", "float16", nil, function() return cases.mlp(16, 16, 8, 8) end},
  {"vit_s_16, 12 layers, AdamW", "float16", nil, function()
    local model = dm.models.vit_s_16{image_size = 16, patch_size = 8, num_classes = 8,
      num_heads = 2, hidden_dim = 16, mlp_dim = 32}
    return case(model, "AdamW", ADAMW, nn.CrossEntropyLoss(), dm.randn(2, 3, 16, 16),
      dm.randint(8, {2}))
  end},
  {"bert, 12 layers, AdamW", "bfloat16", nil, function()
    local model = dm.models.bert{vocab_size = 64, hidden_size = 16, num_attention_heads = 2,
      intermediate_size = 32, max_position_embeddings = 8, hidden_dropout_prob = 0,
      attention_probs_dropout_prob = 0}
    return case(model, "AdamW", ADAMW, tokens, dm.randint(64, {2, 8}), dm.randint(64, {2, 8}))
  end},
  {"lstm, 2 layers, 8 steps, Adam", "float16", nil, function()
    return cases.lstm(2, 16, 2, 8)
  end},
  {"unet, Adam", "float16", nil, function()
    local model = dm.models.unet{num_classes = 2, in_channels = 3}
    return case(model, "Adam", {lr = 1e-3}, nn.CrossEntropyLoss(), dm.randn(2, 3, 16, 16),
      dm.randint(2, {2, 16, 16}))
  end},
}

-- The step of a case as train.lua and cuda_train.lua take it.
local function step_of(dtype, most, c)
  local scaler = amp.GradScaler{enabled = dtype == "float16", init_scale = 2 ^ 10}
  return function()
    local _ <close> = dm.scope()
    c.optimizer:zero_grad()
    local loss
    do
      local _ <close> = amp.autocast{device_type = "cuda", dtype = dtype}
      loss = c.criterion(c.model(c.x), c.y)
    end
    scaler:scale(loss):backward()
    if most then
      scaler:unscale_(c.optimizer)
      nn.utils.clip_grad_norm_(c.model:parameters(), most)
    end
    scaler:step(c.optimizer)
    scaler:update()
  end
end

local WORDS = {"work", "launch", "copy", "sync", "bytes"}

local function counts()
  local n = {}
  for _, word in ipairs(WORDS) do n[word] = dm.cuda._count(word) or 0 end
  return n
end

-- What one step counts, after the warm ones, and its work by name. The step after a collection has
-- its gradients elsewhere than those before it, whose garbage was there still, and sends tables of
-- them; the next one shows what a step repeats.
local function measure(step)
  for _ = 1, options.warm do step() end
  collectgarbage()
  collectgarbage "stop"
  step()
  dm.cuda.synchronize()
  local before = counts()
  step()
  collectgarbage "restart"
  local after, names = counts(), {}
  for i = before.work + 1, after.work do
    local name = dm.cuda._work(i):match "^%(?([%w_]+)"
    names[name] = (names[name] or 0) + 1
  end
  for _, word in ipairs(WORDS) do after[word] = after[word] - before[word] end
  return after, names
end

-- {word = n} as "n word", the largest first.
local function listing(names)
  local list = {}
  for name, n in pairs(names) do list[#list + 1] = {name, n} end
  table.sort(list, function(a, b)
    if a[2] ~= b[2] then return a[2] > b[2] end
    return a[1] < b[1]
  end)
  for i, pair in ipairs(list) do list[i] = ("%d %s"):format(pair[2], pair[1]) end
  return table.concat(list, ", ")
end

lib.heading "Launches of a training step"
local rows, lists = {}, {}
for _, row in ipairs(CASES) do
  local name, dtype, most, make = table.unpack(row, 1, 4)
  if name:find(options.only, 1, true) then
    dm.manual_seed(1)
    local n, names = measure(step_of(dtype, most, make()))
    rows[#rows + 1] = {name, dtype, n.work, n.copy, n.sync, ("%.2f"):format(n.bytes / 1e6)}
    lists[#lists + 1] = ("%s: %s"):format(name, listing(names))
    collectgarbage()
  end
end
lib.table({"model", "autocast", "launches", "of them copies, fills", "host waits", "MB"}, rows)
if options.names then print(table.concat(lists, "\n")) end
