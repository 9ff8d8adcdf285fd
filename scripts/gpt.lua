-- Trains a GPT, or an LSTM (scripts/lstm.lua), on a text and writes more of it.
-- `scripts/run scripts/gpt.lua --help` lists the options.
--
--   scripts/run scripts/gpt.lua --data shakespeare.txt
--   scripts/run scripts/gpt.lua --data shakespeare.txt --layers 6 --width 384 --heads 6 \
--     --context 256 --batch 64 --dropout 0.2            # the size that people compare
--   scripts/run scripts/gpt.lua --data shakespeare.txt --tokens gpt2 --tokenizer DIR \
--     --layers 12 --width 768 --heads 12 --context 1024 # GPT-2 of 124 million parameters
--   scripts/run scripts/gpt.lua --data shakespeare.txt --load gpt.safetensors --steps 0
--   scripts/run -n 2 scripts/gpt.lua --data shakespeare.txt  # in two processes
--
-- SIGTERM and SIGUSR1 make it save after the step that runs, and end.

package.path = (arg[0]:match "^(.*)/" or ".") .. "/lib/?.lua;" .. package.path
local dm = require "demilune"
local command_line = require "command_line"
local nn, optim, amp, data, text = dm.nn, dm.optim, dm.amp, dm.data, dm.text
local dist, say = dm.distributed, command_line.say

local parser, number = command_line.parser("gpt.lua",
  "Train a GPT or an LSTM on a text and let it write more.")
parser:option("--data", "a text in UTF-8, or a file of tokens as llm.c's (--tokens file), such as "
  .. "the 1.1 MB of Shakespeare known as tiny shakespeare"):count(1)
parser:option("--tokens", "what a token is"):choices{"char", "byte", "gpt2", "file"}
  :default "char"
parser:option("--tokenizer", "folder with GPT-2's encoder.json and vocab.bpe")
parser:option("--model", "what learns"):choices{"gpt", "lstm"}:default "gpt"
number("layers", math.tointeger, "4", "blocks, or layers of an LSTM")
number("width", math.tointeger, "128", "numbers a token is made of")
number("heads", math.tointeger, "4", "heads of attention, in a gpt")
number("context", math.tointeger, "64", "tokens that are looked at")
number("dropout", tonumber, "0", "share of numbers dropped in training")
number("steps", math.tointeger, "2000", "of the optimizer, in all")
number("batch", math.tointeger, "12", "windows in a batch, of all processes")
number("accumulate", math.tointeger, "1", "batches in a step")
number("lr", tonumber, "1e-3", "highest learning rate: 100 steps up, then a cosine down to a tenth")
number("weight-decay", tonumber, "0.1", "of matrices")
number("clip", tonumber, "1.0", "norm of the gradients at most")
number("every", math.tointeger, "250", "steps between looks at the loss")
number("seed", math.tointeger, "1", "of weights, order and sample")
number("sample", math.tointeger, "300", "tokens to write at the end")
number("temperature", tonumber, "0.8", "of the sample: 0 takes the likeliest")
number("top-k", math.tointeger, "50", "tokens among which the sample chooses")
parser:option("--prompt", "what the sample begins with"):default "\n"
command_line.precision(parser, "float32", "what matrix products compute in")
parser:option("--save", "where the checkpoint goes"):default "gpt.safetensors"
parser:option("--load", "begin with this checkpoint"):argname "FILE"
local args = command_line.parse(parser)
local n_rank = command_line.ranks(args)
local rank = dist.get_rank()

local function fail(message, ...)
  return command_line.stop("gpt.lua: " .. message:format(...))
end

-- ---- text ----

-- The largest id of a file of tokens, read in chunks: it may not fit into memory.
local function largest(file)
  local most, chunk = 1, 1 << 20
  for first = 1, #file, chunk do
    local _ <close> = dm.scope()
    local part = assert(file:read(first, math.min(chunk, #file - first + 1)))
    most = math.max(most, part:amax():item())
  end
  return most
end

-- The training text as ids (int64 or a file of tokens), the size of the vocabulary, and the
-- tokenizer, if there is one.
local function corpus()
  if args.tokens == "file" then
    local file, why = data.TokenFile(args.data)
    if not file then fail("%s", why) end
    local tokens = args.tokenizer and text.GPT2Tokenizer(args.tokenizer)
    return file, tokens and #tokens or largest(file), tokens
  end
  local opened, why = io.open(args.data, "rb")
  local file <close> = opened or fail("%s; hint: --data wants a text", why)
  local whole = file:read "a"
  local tokens
  if args.tokens == "gpt2" then
    if not args.tokenizer then fail "--tokens gpt2 wants --tokenizer DIR" end
    tokens, why = text.GPT2Tokenizer(args.tokenizer)
    if not tokens then fail("%s", why) end
  else
    tokens = args.tokens == "byte" and text.ByteTokenizer() or text.CharTokenizer(whole)
  end
  return tokens:encode(whole), #tokens, tokens
end

local ids, n_tokens, tokens = corpus()
local cut = #ids * 9 // 10
local function loader(first, count)
  local windows = text.Windows(ids:narrow(1, first, count), {length = args.context})
  local share = n_rank > 1 and data.DistributedSampler(windows, {seed = args.seed}) or nil
  return data.DataLoader(windows, {batch_size = args.batch // n_rank, shuffle = not share,
    sampler = share, num_workers = 1, drop_last = true, seed = args.seed, device = args.device})
end
local train, valid = loader(1, cut), loader(cut + 1, #ids - cut)

-- ---- the model ----

local model = args.model == "lstm" and dm.models.lstm_lm{n_layer = args.layers,
  width = args.width, block_size = args.context, vocab_size = n_tokens, dropout = args.dropout}
  or dm.models.gpt2{n_layer = args.layers, n_embd = args.width, n_head = args.heads,
    block_size = args.context, vocab_size = n_tokens, dropout = args.dropout}
model:to(args.device)
local trained = n_rank > 1 and nn.parallel.DistributedDataParallel(model) or model

-- Weight decay is for matrices, not for vectors (biases and norms).
local function groups()
  local matrices, vectors = {}, {}
  for _, p in ipairs(model:parameters()) do
    table.insert(p:dim() >= 2 and matrices or vectors, p)
  end
  return {{params = matrices, weight_decay = args.weight_decay},
    {params = vectors, weight_decay = 0}}
end
local optimizer = optim.AdamW(groups(), {lr = args.lr, betas = {0.9, 0.99}})
local UP = math.max(1, math.min(100, args.steps // 10))
local schedule = optim.lr_scheduler.LambdaLR(optimizer, function(n)
  if n < UP then return (n + 1) / (UP + 1) end
  local done = math.min(1, (n - UP) / math.max(1, args.steps - UP))
  return 0.1 + 0.45 * (1 + math.cos(math.pi * done))
end)
local scaler = amp.GradScaler{device = args.device, enabled = args.dtype == "float16"}
local first = 1
if args.load then
  local saved, why = dm.load(args.load)
  if not saved then fail("%s", why) end
  model:load_state_dict(saved.model)
  if args.steps > 0 and saved.optimizer then
    optimizer:load_state_dict(saved.optimizer)
    schedule:load_state_dict(saved.schedule)
    if scaler:is_enabled() and saved.scaler then scaler:load_state_dict(saved.scaler) end
    local states = saved.rng.seed and {saved.rng} or saved.rng -- of one process, or of each
    dm.set_rng_state(states[rank + 1] or states[1])
    first = saved.step + 1
  end
end

local half = args.dtype ~= "float32"
local region = {device_type = args.device, enabled = half, dtype = half and args.dtype or nil}
local function loss_of(x, y)
  local _ <close> = amp.autocast(region)
  return nn.functional.cross_entropy(trained(x):flatten(1, 2), y:flatten())
end

-- The value of a mean over all processes.
local function value_of(mean) return (n_rank > 1 and mean:all_reduce() or mean):compute() end

-- The mean loss of 20 batches of unseen text.
local function valid_loss()
  trained:eval()
  local mean = dm.metrics.Mean()
  dm.no_grad(function()
    for i, x, y in valid:iter() do
      local _ <close> = dm.scope()
      mean:update(loss_of(x, y))
      if i == 20 then break end
    end
  end)
  trained:train()
  return value_of(mean)
end

-- The training batches, epoch after epoch.
local function batches()
  return coroutine.wrap(function()
    while true do
      for _, x, y in train:iter() do coroutine.yield(x, y) end
    end
  end)
end

-- Writes the checkpoint, of the first process.
local function save(step)
  local own = dm.get_rng_state()
  local rng = n_rank > 1 and dist.all_gather_object(own) or own
  if rank > 0 then return end
  assert(dm.save(args.save, {model = model:state_dict(), optimizer = optimizer:state_dict(),
    schedule = schedule:state_dict(), scaler = scaler:is_enabled() and scaler:state_dict() or nil,
    rng = rng, step = step}))
end

-- ---- training ----

local count = 0
for _, p in ipairs(model:parameters()) do count = count + p:numel() end
say(("%d tokens of %d kinds, %.2f million parameters, %s on %s%s"):format(#ids, n_tokens,
  count / 1e6, args.dtype, args.device, command_line.of_ranks(n_rank)))

local next_batch, began = batches(), dm.now()
local seen = dm.metrics.Mean()
for step = first, args.steps do
  local _ <close> = dm.scope()
  for _ = 1, args.accumulate do
    local loss = loss_of(next_batch())
    amp.step{loss = loss, optimizer = optimizer, scaler = scaler, max_norm = args.clip,
      accumulate = args.accumulate}
    seen:update(loss:detach())
  end
  schedule:step()
  if step % args.every == 0 or step == args.steps then
    say(("step %d: train loss %.4f, valid loss %.4f, lr %.2e, %.0f tokens/s"):format(step,
      value_of(seen), valid_loss(), schedule:get_last_lr()[1],
      (step - first + 1) * args.batch * args.accumulate * args.context / (dm.now() - began)))
    seen:reset()
    save(step)
  end
  if dist.should_stop() then
    save(step)
    say(("was asked to end: saved %s after step %d"):format(args.save, step))
    dist.destroy_process_group()
    os.exit(0, true)
  end
end

-- ---- a sample ----

if tokens and args.sample > 0 and rank == 0 then
  local prompt = tokens:encode(args.prompt):unsqueeze(1):to(args.device)
  print(tokens:decode(model:generate(prompt, args.sample,
    {temperature = args.temperature, top_k = args.top_k})[1]))
end
dist.destroy_process_group()
