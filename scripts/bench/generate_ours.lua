-- This project's side of generate.lua: one request a line, one answer a line.
local dm = require "demilune"

local _ <close> = dm.no_grad()
local now = os.getenv "BENCH_ALONE" and os.clock or dm.now
local model, cache, last, prompt
local memory = dm.zeros(64 * 1024 * 1024) -- 256 MB

local requests = {}

-- A model with random weights, and a prompt of so many random tokens -> the bytes that the next
-- token reads.
function requests.begin(dtype, batch, tokens, layers, width, vocabulary)
  dm.manual_seed(1)
  model, cache, last = nil, nil, nil
  collectgarbage()
  model = dm.models.gpt2{n_layer = layers, n_embd = width, n_head = width // 64,
    vocab_size = vocabulary}:eval():to(dtype)
  prompt, cache = tokens, model:cache()
  local scores = model(dm.randint(1, vocabulary, {batch, tokens}), cache)
  last = scores:select(2, tokens):argmax(-1):unsqueeze(-1)
  local weights = 0
  for _, p in ipairs(model:parameters()) do weights = weights + p:numel() * p:element_size() end
  return {bytes = weights + 2 * layers * batch * tokens * width * scores:element_size()}
end

-- Seconds a token, of n tokens after the prompt.
function requests.time(n)
  cache:crop(prompt)
  local next_ids = last
  local from = now()
  for _ = 1, n do
    local _ <close> = dm.scope()
    local scores = model(next_ids, cache)
    next_ids = dm.keep(scores:select(2, 1):argmax(-1):unsqueeze(-1))
  end
  return {seconds = (now() - from) / n}
end

-- Bytes a second that a sum reads from memory.
function requests.read()
  local _ <close> = dm.scope()
  local best = math.huge
  for _ = 1, 3 do
    local from = now()
    memory:sum():item()
    best = math.min(best, now() - from)
  end
  return {rate = memory:numel() * 4 / best}
end

dofile((arg[0]:match "^(.*)/[^/]*$" or ".") .. "/answers.lua")(requests)
