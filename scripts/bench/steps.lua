-- The models whose training steps launches.lua and cuda_steps.lua run, on the default device: with
-- all their layers, and either small widths, on which launches do not depend, or a size that fills
-- a GPU.
local dm = require "demilune"
local cases = require "cases"
local amp, nn, optim, F = dm.amp, dm.nn, dm.optim, dm.nn.functional

local steps = {}

-- A case of cases.lua from a model, its optimizer's class and options, and a batch.
local function case(model, class, opts, criterion, x, y)
  return {model = model, optimizer = optim[class](model:parameters(), opts),
    criterion = criterion, x = x, y = y}
end

local function tokens(scores, y) return F.cross_entropy(scores:flatten(1, 2), y:flatten()) end

local ADAMW = {lr = 3e-4, weight_decay = 0.1}

local function resnet18(small_stem, images, side)
  local model = dm.models.resnet18{num_classes = 10, small_stem = small_stem}
  return case(model, "SGD", {lr = 1e-3, momentum = 0.9}, nn.CrossEntropyLoss(),
    dm.randn(images, 3, side, side), dm.randint(10, {images}))
end

-- n: the tokens of a row, if not all of the context.
local function gpt2(width, heads, context, vocabulary, rows, n)
  local model = dm.models.gpt2{n_layer = 12, n_embd = width, n_head = heads,
    block_size = context, vocab_size = vocabulary, dropout = 0}
  local shape = {rows, n or context}
  return case(model, "AdamW", ADAMW, tokens, dm.randint(vocabulary, shape),
    dm.randint(vocabulary, shape))
end

local function vit(side, patch, classes, heads, width, images)
  local model = dm.models.vit_s_16{image_size = side, patch_size = patch, num_classes = classes,
    num_heads = heads, hidden_dim = width, mlp_dim = 4 * width}
  return case(model, "AdamW", ADAMW, nn.CrossEntropyLoss(), dm.randn(images, 3, side, side),
    dm.randint(classes, {images}))
end

local function bert(vocabulary, width, heads, context, rows)
  local model = dm.models.bert{vocab_size = vocabulary, hidden_size = width,
    num_attention_heads = heads, intermediate_size = 4 * width,
    max_position_embeddings = context, hidden_dropout_prob = 0, attention_probs_dropout_prob = 0}
  return case(model, "AdamW", ADAMW, tokens, dm.randint(vocabulary, {rows, context}),
    dm.randint(vocabulary, {rows, context}))
end

local function unet(images, side)
  local model = dm.models.unet{num_classes = 2, in_channels = 3}
  return case(model, "Adam", {lr = 1e-3}, nn.CrossEntropyLoss(), dm.randn(images, 3, side, side),
    dm.randint(2, {images, side, side}))
end

--- Each has a name, autocast's dtype, perhaps the largest norm of its gradients (`clip`), and its
--- case: small(), full(), or of full width with few rows: rows(rows, tokens of a row).
steps.models = {
  {name = "resnet18, small stem, SGD", dtype = "float16",
    small = function() return resnet18(true, 2, 8) end,
    full = function() return resnet18(true, 128, 32) end},
  {name = "gpt2, 12 layers, AdamW, clip", dtype = "bfloat16", clip = 1.0,
    small = function() return gpt2(16, 2, 8, 64, 2) end,
    full = function() return gpt2(768, 12, 1024, 50304, 16) end,
    rows = function(rows, n) return gpt2(768, 12, 1024, 50304, rows, n) end},
  {name = "quantised sine, Adam", dtype = "float16",
    small = function() return cases.sine(4, 16) end,
    full = function() return cases.sine(512, 256) end},
  {name = "mlp, Adam", dtype = "float16",
    small = function() return cases.mlp(16, 16, 8, 8) end,
    full = function() return cases.mlp(784, 128, 10, 32) end},
  {name = "vit_s_16, 12 layers, AdamW", dtype = "float16",
    small = function() return vit(16, 8, 8, 2, 16, 2) end,
    full = function() return vit(224, 16, 1000, 6, 384, 128) end},
  {name = "bert, 12 layers, AdamW", dtype = "bfloat16",
    small = function() return bert(64, 16, 2, 8, 2) end,
    full = function() return bert(30522, 768, 12, 128, 32) end},
  {name = "lstm, 2 layers, Adam", dtype = "float16",
    small = function() return cases.lstm(2, 16, 2, 8) end,
    full = function() return cases.lstm(2, 512, 64, 64) end},
  {name = "unet, Adam", dtype = "float16",
    small = function() return unet(2, 16) end,
    full = function() return unet(16, 128) end},
}

--- A function of x and y that does the training step of a model's case and gives its loss:
--- forward, backward, GradScaler and optimizer.
function steps.of(model, c)
  local scaler = amp.GradScaler{enabled = model.dtype == "float16", init_scale = 2 ^ 10}
  return function(x, y)
    c.optimizer:zero_grad()
    local loss
    do
      local _ <close> = amp.autocast{device_type = "cuda", dtype = model.dtype}
      loss = c.criterion(c.model(x), y)
    end
    scaler:scale(loss):backward()
    if model.clip then
      scaler:unscale_(c.optimizer)
      nn.utils.clip_grad_norm_(c.model:parameters(), model.clip)
    end
    scaler:step(c.optimizer)
    scaler:update()
    return loss
  end
end

--- The same step on the case's own batch, whose tensors are released.
function steps.eager(model, c)
  local step = steps.of(model, c)
  return function()
    local _ <close> = dm.scope()
    step(c.x, c.y)
  end
end

return steps
