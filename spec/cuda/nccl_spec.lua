-- Collectives of tensors on CUDA by NCCL: programs of spec/distributed/nccl.lua on several ranks.
-- The emulation has an NCCL between processes; it holds calls to more than NCCL does
-- (kernels/emulated/nccl.cpp).
local both = require "spec.cuda.both"
local dm = require "demilune"
local launch = require "spec.distributed.launch"

if both.missing() then return end

-- Two ranks on one GPU are no link of NCCL's: a machine needs a GPU for each.
local N_GPU = dm.cuda._count "launch" and 8 or dm.cuda.device_count()

-- Runs a part on n ranks, each with a device of its own unless the variables say otherwise.
local function ranks(n, part, variables)
  return launch.ranks(n, "nccl", part, ("DEMILUNE_EMULATED_DEVICES=%d %s"):format(n,
    variables or ""))
end

local it_ranks = launch.tests(it, pending)

-- A test on n ranks that links n GPUs.
local function it_links(n, title, f)
  title = ("%s on %d ranks"):format(title, n)
  if n > N_GPU then
    pending(title .. " #ranks: there are fewer GPUs")
  else
    it_ranks(title, f)
  end
end

-- A test of what only the emulation can be asked for.
local function it_emulates(title, f)
  if dm.cuda._count "launch" then it_ranks(title, f) else pending(title .. ": the emulation") end
end

describe("NCCL", function()
  for n = 2, 4 do
    it_links(n, "has every collective with every dtype", function()
      local text, code = ranks(n, "collectives")
      assert.equal(0, code, text)
      assert.equal(n, launch.told(text, "by link , nccl is open"), text)
    end)
    it_links(n, "averages gradients as one process has them", function()
      local text, code = ranks(n, "ddp")
      assert.equal(0, code, text)
      assert.equal(n, launch.told(text, "by link , nccl is open"), text)
    end)
  end

  it_links(3, "skips a step of float16 on all ranks where one overflows", function()
    local text, code = ranks(3, "amp")
    assert.equal(0, code, text)
    assert.equal(3, launch.told(text, "amp on cuda"), text)
  end)

  it_links(3, "leaves reductions in the order of the ranks to the host", function()
    local text, code = ranks(3, "order 40 ordered")
    assert.equal(0, code, text)
    assert.equal(3, launch.told(text, "sum true, mean true"), text)
    assert.equal(3, launch.told(text, "by link , nccl is open"), text)
  end)

  it_emulates("adds in an order of its own else", function()
    local text, code = ranks(3, "order")
    assert.equal(0, code, text)
    assert.equal(3, launch.told(text, "sum false, mean false"), text)
  end)

  it_links(3, "tells where ranks do not agree, and goes on", function()
    local text, code = ranks(3, "disagrees")
    assert.equal(0, code, text)
    assert.equal(3, launch.told(text, "ranks do not agree: rank 0 gives all_reduce (sum) {10} "
      .. "float32 on cuda"), text)
    assert.equal(3, launch.told(text, "rank 0 gives all_reduce (sum) {3} float32 ("), text)
    assert.equal(3, launch.told(text, "a collective of several processes"), text)
  end)

  it_links(3, "ends where a rank leaves", function()
    local text, _, seconds = ranks(3, "leaves")
    assert.equal(2, launch.told(text, "rank 1 has left after"), text)
    assert.is_true(seconds < 30)
  end)

  it_links(3, "ends where a rank is killed", function()
    local text, code, seconds = ranks(3, "dies 5")
    assert.not_equal(0, code, text)
    assert.equal(0, launch.told(text, "true\t"), text)
    -- mpirun may end one of the two that are left before it says a word
    assert.is_true(launch.told(text, "is ended by SIGTERM: it waits in all_reduce")
      + launch.told(text, "has waited for") > 0, text)
    assert.is_true(seconds < 30)
  end)

  it_emulates("tells of what was queued and never ends, in the next call or at the end", function()
    local hangs = "DEMILUNE_EMULATED_NCCL_HANGS=1"
    local text = ranks(2, "hangs 3", hangs)
    local waited = "has waited for 3%.?%d* s in all_reduce %(sum%) {3} float32 on cuda"
    assert.is_true(launch.count(text, waited) > 0, text)
    text = ranks(2, "hangs 3 library own ends", hangs)
    assert.is_true(launch.told(text, "destroy_process_group: rank") > 0, text)
    assert.equal(0, launch.told(text, "true"), text)
  end)

  -- Everything goes through the host, with one warning that says why.
  local function through_host(why, variables, more)
    local text, code = ranks(2, "host 40 library" .. (more or ""), variables)
    assert.equal(0, code, text)
    assert.equal(1, launch.told(text, "tensors on GPUs go through the host and MPI, not by NCCL: "
      .. why), text)
    assert.equal(1, launch.told(text, "go through the host"), text)
    assert.equal(2, launch.told(text, "by host " .. why), text)
    return text
  end

  it_ranks("is not used where ranks share a GPU", function()
    through_host("ranks 0 and 1 share a GPU", nil, " cuda:0")
  end)

  it_ranks("is switched off by DEMILUNE_NCCL=0", function()
    local text = through_host("rank 0: DEMILUNE_NCCL=0", "DEMILUNE_NCCL=0")
    assert.equal(2, launch.told(text, "nccl is off"), text)
  end)

  it_emulates("is not used where it is missing, or too old", function()
    local text = through_host("rank 0: no libnccl.so.2; hint: DEMILUNE_CUDA_LIBS=folder",
      "DEMILUNE_EMULATED_MISSING=libnccl.so.2")
    assert.equal(2, launch.told(text, "nccl is missing"), text)
    through_host("rank 0: libnccl.so.2 is version 2.14.3, wanted 2.18 or newer",
      "DEMILUNE_EMULATED_NCCL_VERSION=21403")
  end)

  it_emulates("tells of its errors on all ranks", function()
    local text, code = ranks(2, "host", "DEMILUNE_EMULATED_NCCL_FAILS=ncclAllReduce")
    assert.not_equal(0, code, text)
    assert.is_true(launch.told(text, "nccl: internal error (in ncclAllReduce): the emulation "
      .. "refuses ncclAllReduce") > 0, text)
    text, code = ranks(2, "host", "DEMILUNE_EMULATED_NCCL_FAILS=ncclGetUniqueId")
    assert.not_equal(0, code, text)
    assert.is_true(launch.told(text, "nccl: unhandled system error (in ncclGetUniqueId)") > 0,
      text)
  end)
end)
