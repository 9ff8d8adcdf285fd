-- A training step of GPT-2 of 124 million parameters on the CPU, as llm.c's train_gpt2 makes it
-- (4 rows of 64 tokens, AdamW of all parameters), beside llm.c and PyTorch's eager code.
--   PYTHON=python3 scripts/run scripts/bench/llmc.lua --source DIR [--rounds 5] [--threads 2]
--       [--losses 10] [--layers 12] [--width 768] [--vocabulary 50257]
-- DIR is a checkout of llm.c; train_gpt2.c is compiled with the flags of its Makefile (-Ofast,
-- -march=native, OpenMP). All sides start from the same weights and read the same batch. Each
-- round asks every side for one step, after --losses of them, which are compared with the losses of
-- PyTorch in the same dtype.
local lib = dofile((arg[0]:match "^(.*)/[^/]*$" or ".") .. "/lib.lua")
local o = lib.options{source = "", rounds = 5, threads = tonumber(lib.output "nproc") or 1,
  losses = 10, layers = 12, width = 768, vocabulary = 50257, rows = 4, context = 64}
assert(o.source ~= "", "--source DIR says where llm.c lies")

local folder = assert(lib.output "mktemp -d")
local path, program = folder .. "/start.safetensors", folder .. "/llmc"
local case = {"gpt", o.layers, o.width, o.width // 64, o.context, o.rows, o.vocabulary}

local function compile()
  return os.execute(("cc -Ofast -march=native -fopenmp -DOMP -w -I%s -o %s %s/llmc.c -lm")
    :format(lib.quote(o.source), program, lib.quote(lib.here)))
end
assert(compile(), "llm.c was not compiled")

local env = ("env OMP_NUM_THREADS=%d DEMILUNE_NUM_THREADS=%d "):format(o.threads, o.threads)
local ours = lib.worker("demilune", env .. "lua5.4 " .. lib.quote(lib.here .. "/train_ours.lua"))
local llmc = lib.worker("llm.c", env .. program)
local peer = lib.worker("PyTorch", lib.ALLOCATORS[2].command .. env
  .. lib.quote(os.getenv "PYTHON" or "python3") .. " " .. lib.quote(lib.here .. "/train_peer.py"))
local about = peer:ask "about"
lib.peer_version = about and about.version
lib.heading "A training step of GPT-2 124M"

assert(ours:ask("begin", "float32", table.unpack(case)))
assert(ours:ask("save", path))

local rows, problems = {}, {}

-- One dtype: losses of the first steps, and then a step of each side in turns.
local function compare(dtype, sides)
  local seconds, losses = {}, {}
  for i, s in ipairs(sides) do
    seconds[i], losses[i] = {}, {}
    local ready, why = s.worker:ask(table.unpack(s.begin))
    if ready then
      local answer = s.losses()
      for k = 1, o.losses do losses[i][k] = answer["l" .. k] end
    else
      problems[#problems + 1] = {s.name, why}
    end
  end
  for _ = 1, o.rounds do
    for i, s in ipairs(sides) do
      if #losses[i] > 0 then
        table.insert(seconds[i], assert(s.worker:ask(table.unpack(s.time))).seconds)
      end
    end
  end
  local most = {}
  for i in ipairs(sides) do
    for k, loss in ipairs(losses[i]) do
      local expected = losses[#sides][k]
      if expected and i < #sides then
        most[i] = math.max(most[i] or 0, math.abs(loss - expected) / losses[#sides][1])
      end
    end
  end
  for i, s in ipairs(sides) do
    if #seconds[i] > 0 then
      rows[#rows + 1] = {s.name, dtype, lib.spread(seconds[i], 1e3),
        ("%.2f"):format(lib.ratio(seconds[i], seconds[1])),
        most[i] and ("%.1e"):format(most[i]) or "-"}
    end
  end
end

for _, dtype in ipairs{"float32", "bfloat16"} do
  local sides = {{name = "demilune", worker = ours, begin = {"begin", dtype, table.unpack(case)},
    losses = function() return assert(ours:ask("losses", o.losses, 1e9)) end, time = {"time", 0}}}
  if dtype == "float32" then
    sides[2] = {name = "llm.c", worker = llmc, begin = {"begin", path, table.unpack(case, 2)},
      losses = function()
        local found = {}
        for k = 1, o.losses do found["l" .. k] = assert(llmc:ask "step").loss end
        return found
      end, time = {"step"}}
  end
  if about then
    sides[#sides + 1] = {name = "PyTorch", worker = peer,
      begin = {"begin", path, dtype, o.threads, "contiguous_format", "eager", table.unpack(case)},
      losses = function() return assert(peer:ask("losses", o.losses)) end, time = {"time", 0}}
  end
  compare(dtype, sides)
end

lib.table({"", "dtype", "ms a step", "of ours", "losses differ from PyTorch's"}, rows)
if #problems > 0 then lib.table({"side", "problem"}, problems) end
for _, worker in ipairs{ours, llmc, peer} do worker:close() end
os.execute("rm -r " .. lib.quote(folder))
