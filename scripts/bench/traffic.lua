-- Bytes that a training step of GPT-2 (124 million parameters, bfloat16, AdamW, clipping) reads of
-- a GPU's memory and writes to it, by kernel, counted on the emulated device: each page once a
-- launch. The model has its real size, the batch few tokens; what a step of more tokens moves
-- follows from two batches, as each kernel's bytes are some for the step and some for each token.
--   cmake -S . -B build/emu -G Ninja -DWITH_CUDA=emulated && ninja -C build/emu
--   DEMILUNE_EMULATED_TRAFFIC=1 DEMILUNE_EMULATED_MEMORY=8000000000 \
--     lua5.4 scripts/bench/traffic.lua [--tokens 16384] [--least 0.2]    (with build/emu's module)
-- It takes minutes. --least: kernels that move fewer GB are one line. Products (cuBLASLt, and
-- cuDNN's attention) are left out: how often they read their operands is the libraries' choice.
-- A launch that touches parts of pages is counted with all of them.
local lib = dofile((arg[0]:match("^(.*)/[^/]*$") or ".") .. "/lib.lua")
local dm = require "demilune"
local steps = require "steps"

local options = lib.options{tokens = 16384, least = 0.2}
local ROWS, LENGTH = {1, 3}, 16 -- of the two batches

if not dm.cuda.is_available() or not dm.cuda._count "launch" then
  print "traffic: only the emulated device counts it (-DWITH_CUDA=emulated)"
  os.exit(true)
end
if os.getenv "DEMILUNE_EMULATED_TRAFFIC" ~= "1" then
  print "traffic: wants DEMILUNE_EMULATED_TRAFFIC=1"
  os.exit(true)
end
local _ <close> = dm.device "cuda" -- all tensors of this file
dm.autograd.set_recompute_bytes(0) -- as for tensors of 1 MB and more

local gpt2
for _, model in ipairs(steps.models) do gpt2 = model.rows and model or gpt2 end

-- {kernel = {n = launches, read = , written = }} of the second step on a batch of `rows` rows. The
-- first one makes the optimizer's state, and the copies of weights in 16 bits.
local function measure(rows)
  local step = steps.eager(gpt2, gpt2.rows(rows, LENGTH))
  step()
  dm.cuda.synchronize()
  local before = dm.cuda._count "work"
  step()
  dm.cuda.synchronize()
  local kernels = {}
  for i = before + 1, dm.cuda._count "work" do
    local name, _, read, written = dm.cuda._work(i)
    local k = kernels[name] or {n = 0, read = 0, written = 0}
    kernels[name] = k
    k.n, k.read, k.written = k.n + 1, k.read + read, k.written + written
  end
  collectgarbage()
  return kernels
end

local few, more = measure(ROWS[1]), measure(ROWS[2])

-- Bytes of all tokens, from those of the two batches.
local function all(a, b)
  local per_token = (b - a) / ((ROWS[2] - ROWS[1]) * LENGTH)
  return a + per_token * (options.tokens - ROWS[1] * LENGTH)
end

local NONE = {n = 0, read = 0, written = 0}
local list, names = {}, {}
for _, kernels in ipairs{few, more} do
  for name in pairs(kernels) do names[name] = not name:find "^cublas" and not name:find "^cudnn" end
end
for name, counts in pairs(names) do
  local a, b = few[name] or NONE, more[name] or NONE
  local k = {name = name, n = b.n, read = all(a.read, b.read) / 1e9,
    written = all(a.written, b.written) / 1e9}
  if counts then list[#list + 1] = k end
end
table.sort(list, function(a, b) return a.read + a.written > b.read + b.written end)

local function row(name, k)
  return {name, k.n, ("%.2f"):format(k.read), ("%.2f"):format(k.written),
    ("%.2f"):format(k.read + k.written)}
end
local function add(to, k)
  to.n, to.read, to.written = to.n + k.n, to.read + k.read, to.written + k.written
end

lib.heading(("Bytes moved by a step of GPT-2, %d tokens"):format(options.tokens))
local rows, rest, sum = {}, {n = 0, read = 0, written = 0}, {n = 0, read = 0, written = 0}
for _, k in ipairs(list) do
  add(sum, k)
  if k.read + k.written < options.least then add(rest, k) else rows[#rows + 1] = row(k.name, k) end
end
rows[#rows + 1] = row("the others", rest)
rows[#rows + 1] = row("all", sum)
lib.table({"kernel", "launches", "GB read", "GB written", "GB"}, rows)
