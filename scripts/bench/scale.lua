-- Training in two processes beside one, and beside PyTorch's DistributedDataParallel by gloo:
--   PYTHON=python3 scripts/run scripts/bench/scale.lua --rounds 5
-- In each round every side trains once, in a process or a pair of its own, one after the other: the
-- whole batch in one process of two threads, half of it in each of two processes of one thread. A
-- training begins with some steps that are not timed. PyTorch's layout is the faster of its two.
package.path = (arg[0]:match "^(.*)/" or ".") .. "/?.lua;" .. package.path
local lib = require "lib"

local o = lib.options { rounds = 5, seconds = 4, case = "all" }
local python = os.getenv "PYTHON" or "python3"

local CASES = {
  { name = "ResNet-18, CIFAR stem, 32 images", words = "resnet18 32 cifar", least = 0.95,
    layouts = { "contiguous", "channels_last" } },
  { name = "character GPT, 6 layers of 384, 8 x 256", words = "gpt 6 384 6 256 8", least = 0.95,
    layouts = { "contiguous" } },
  { name = "the CNN of fashion_mnist.lua, 128 images", words = "cnn 128", least = 0.90,
    layouts = { "contiguous", "channels_last" } },
}

-- Runs a command whose last line is "key=value ..." -> its values; or nil.
local function run(command)
  local text = lib.output(command)
  local answer = {}
  for key, value in (text or ""):gmatch "(%w+)=(%S+)" do answer[key] = tonumber(value) or value end
  return answer.seconds and answer or nil
end

local function ours(ranks, threads, job, words)
  return run(("env DEMILUNE_NUM_THREADS=%d mpirun --allow-run-as-root --oversubscribe --bind-to "
    .. "none -n %d lua5.4 %s/scale_ours.lua %s %g %s"):format(threads, ranks, lib.quote(lib.here),
    job, o.seconds, words))
end

local function peer(job, words)
  return run(("env OMP_NUM_THREADS=1 %s -m torch.distributed.run --standalone --nproc-per-node 2 "
    .. "%s/scale_peer.py %s %d %s"):format(lib.quote(python), lib.quote(lib.here), job, o.seconds,
    words))
end

-- Appends the seconds of an answer, if there is one.
local function note(list, answer)
  if answer then list[#list + 1] = answer.seconds end
  return answer
end

local function milliseconds(list) return #list > 0 and lib.spread(list, 1e3) or "absent" end
local function ratio(a, b) return #b > 0 and ("%.2f"):format(lib.ratio(a, b)) or "" end

local first = peer("reduce", "1024")
lib.peer_version = first and first.version
lib.heading "Two processes"

local GOALS = { "1 x 2 / 2 x 1", "PyTorch / 2 x 1" }
local rows, goals, sent = {}, {}, {}
for _, case in ipairs(CASES) do
  if o.case == "all" or case.words:find(o.case, 1, true) then
    local one, plain, two, torch, answer = {}, {}, {}, {}, nil
    for _ = 1, o.rounds do
      note(plain, ours(1, 2, "train", "PLAIN " .. case.words))
      note(one, ours(1, 2, "train", "DDP " .. case.words))
      answer = assert(note(two, ours(2, 1, "train", "DDP " .. case.words)), "no answer")
      local best
      for _, layout in ipairs(first and case.layouts or {}) do
        local its = peer("train", layout .. " " .. case.words)
        if its and (not best or its.seconds < best.seconds) then best = its end
      end
      note(torch, best)
    end
    rows[#rows + 1] = { case.name, milliseconds(plain), milliseconds(one), milliseconds(two),
      milliseconds(torch), ratio(plain, two), ratio(torch, two), ratio(one, plain) }
    sent[#sent + 1] = { case.name, ("%.4f"):format(answer.sent) }
    goals[#goals + 1] = { case.name, ("%.2f: %s"):format(case.least,
      lib.verdict(lib.ratio(plain, two), case.least, true)),
      first and "1.5: " .. lib.verdict(lib.ratio(torch, two), 1.5, true) or "absent" }
  end
end
lib.table({ "milliseconds a step", "1 process x 2 threads", "the same in DDP", "2 x 1",
  "PyTorch 2 x 1", GOALS[1], GOALS[2], "DDP of one / plain" }, rows)
lib.table({ "goals", GOALS[1], GOALS[2] }, goals)
print "Bytes sent a rank and step, in 2 (n - 1) / n of the gradients' bytes:\n"
lib.table({ "case", "ratio" }, sent)

local reduce, gloo, init, its_init = {}, {}, {}, {}
for _ = 1, o.rounds do
  local answer = assert(note(reduce, ours(2, 1, "reduce", "1048576")), "no answer")
  init[#init + 1] = answer.init
  local its = first and note(gloo, peer("reduce", "1048576"))
  if its then its_init[#its_init + 1] = its.init end
end
lib.table({ "between two processes", "demilune", "PyTorch, gloo", "ratio" }, {
  { "all_reduce of 4 MiB, a mean, ms", milliseconds(reduce), milliseconds(gloo),
    ratio(gloo, reduce) },
  { "init_process_group, ms", milliseconds(init), milliseconds(its_init), ratio(its_init, init) },
})
