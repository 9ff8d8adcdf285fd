-- Text from GPT-2 of 124 million parameters, a token at a time: seconds of a token, beside PyTorch
-- and ggml, and beside the time in which the memory can be read that a token needs.
--   PYTHON=python3 scripts/run scripts/bench/generate.lua [--rounds 5] [--compile 1] [--alone 1]
-- --alone 1 gives either side one thread and counts its processor's time, which other work on the
-- machine disturbs less.
-- Both sides keep keys and values of the tokens read (PyTorch's cache is one tensor, its
-- attention the fused one, its layers are nn.Linear), and take the likeliest token. After a prompt
-- of 128 tokens each round makes 16 more, and forgets them. A token reads all weights once, and
-- the keys and values so far; how fast memory is read is measured on either side in each round, as
-- the sum of 256 MB, and the faster of the two counts. ggml is llama.cpp by its Python package
-- (pip install llama-cpp-python gguf), which has a column of its own where it is installed.
package.path = (arg[0]:match "^(.*)/" or ".") .. "/?.lua;" .. package.path
local lib = require "lib"

local o = lib.options { rounds = 5, compile = 0, alone = 0, prompt = 128, tokens = 16, layers = 12,
  width = 768, vocabulary = 50257 }
local GOAL = 0.85 -- of what the memory's speed allows

local env = o.alone == 1 and "env BENCH_ALONE=1 OMP_NUM_THREADS=1 DEMILUNE_NUM_THREADS=1 " or ""
local ours = lib.worker("demilune", env .. "lua5.4 " .. lib.quote(lib.here .. "/generate_ours.lua"))
local python = os.getenv "PYTHON" or "python3"

-- A side in Python, and its version, nil where its library is not installed; it is ended then, as
-- workers that start later would keep its input open.
local function peer_of(name, file)
  local worker = lib.worker(name, env .. lib.quote(python) .. " " .. lib.quote(lib.here .. file))
  local about = worker:ask "about"
  if not about then
    worker:close()
    worker.gone = ("no %s in %s"):format(name, python)
  end
  return worker, about and about.version
end
local peer, peer_version = peer_of("PyTorch", "/generate_peer.py")
local ggml, ggml_version = peer_of("ggml", "/generate_ggml.py")
lib.peer_version = peer_version
lib.heading "A token of GPT-2 124M"

local modes = o.compile == 1 and { "eager", "compile" } or { "eager" }
local rows = {}
for _, dtype in ipairs { "float32", "bfloat16" } do
  for _, batch in ipairs { 1, 2, 4, 8 } do
    local begin = { "begin", dtype, batch, o.prompt, o.layers, o.width, o.vocabulary }
    local bytes = assert(ours:ask(table.unpack(begin))).bytes
    local mine, theirs, ggmls, shares, mode, why = {}, {}, {}, {}, "", nil
    local best = {}
    for _, name in ipairs(modes) do
      local answer
      answer, why = peer:ask(name, table.unpack(begin, 2))
      if answer then best[#best + 1] = { name, assert(peer:ask("time", o.tokens)).seconds } end
    end
    table.sort(best, function(a, b) return a[2] < b[2] end)
    if best[1] then
      mode = best[1][1]
      if #best > 1 then peer:ask(mode, table.unpack(begin, 2)) end
    end
    local with_ggml = ggml:ask(table.unpack(begin))
    for _ = 1, o.rounds do
      local a, read = assert(ours:ask("time", o.tokens)), assert(ours:ask "read").rate
      mine[#mine + 1] = a.seconds
      if mode ~= "" then
        theirs[#theirs + 1] = assert(peer:ask("time", o.tokens)).seconds
        read = math.max(read, assert(peer:ask "read").rate)
      end
      if with_ggml then ggmls[#ggmls + 1] = assert(ggml:ask("time", o.tokens)).seconds end
      shares[#shares + 1] = bytes / a.seconds / read
    end
    rows[#rows + 1] = { ("%s, batch %d"):format(dtype, batch), lib.spread(mine, 1e3),
      #theirs > 0 and lib.spread(theirs, 1e3) .. " " .. mode or why,
      #theirs > 0 and ("%.2f"):format(lib.ratio(theirs, mine)) or "-",
      #ggmls > 0 and lib.spread(ggmls, 1e3) or "-",
      #ggmls > 0 and ("%.2f"):format(lib.ratio(ggmls, mine)) or "-",
      lib.spread(shares, 1, "%.2f"),
      ("%g: %s"):format(GOAL, lib.verdict(lib.median(shares), GOAL, true)) }
  end
end
lib.table({ "ms a token", "demilune", "PyTorch", "PyTorch / ours",
  "ggml", "ggml / ours", "share of the memory's speed", "goal" }, rows)
if ggml_version then print("ggml: llama-cpp-python " .. ggml_version) end
for _, worker in ipairs{ours, peer, ggml} do worker:close() end
