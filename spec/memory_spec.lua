-- The allocators' statistics have PyTorch's names and count what is allocated. A training step
-- frees activations during the backward pass.

local dm = require "demilune"
local DEVICE = require("spec.device").type

local NAMES = {"allocation", "allocated_bytes", "segment", "reserved_bytes", "active",
  "active_bytes", "inactive_split", "inactive_split_bytes", "requested_bytes"}
local POOLS = {"all", "small_pool", "large_pool"}
local FIELDS = {"current", "peak", "allocated", "freed"}

-- The differences of the statistics over fn(); its results stay alive until after.
local function change(fn)
  collectgarbage()
  local before = dm.memory_stats(DEVICE)
  local kept = fn()
  local after, out = dm.memory_stats(DEVICE), {}
  for key, value in pairs(after) do out[key] = value - before[key] end
  return out, kept
end

describe("memory_stats", function()
  it("has PyTorch's flat names", function()
    local stats, n = dm.memory_stats(DEVICE), 0
    for _, name in ipairs(NAMES) do
      for _, pool in ipairs(POOLS) do
        for _, field in ipairs(FIELDS) do
          assert.equal("integer", math.type(stats[("%s.%s.%s"):format(name, pool, field)]))
          n = n + 1
        end
      end
    end
    for _, name in ipairs{"oversize_allocations", "oversize_segments"} do
      for _, field in ipairs(FIELDS) do
        assert.equal(0, stats[name .. "." .. field])
        n = n + 1
      end
    end
    for _, name in ipairs{"num_alloc_retries", "num_ooms", "num_sync_all_streams",
      "num_device_alloc", "num_device_free", "forced_collections", "forced_collection_seconds"} do
      assert.is_number(stats[name])
      n = n + 1
    end
    for _ in pairs(stats) do n = n - 1 end
    assert.equal(0, n)
  end)

  it("1000 bytes asked for are 1024 allocated", function()
    local d, t = change(function() return dm.empty(1000, {dtype = "uint8"}) end)
    assert.is_true(t ~= nil)
    for _, pool in ipairs{"all", "small_pool"} do
      assert.equal(1000, d["requested_bytes." .. pool .. ".current"])
      assert.equal(1024, d["allocated_bytes." .. pool .. ".current"])
      assert.equal(1024, d["active_bytes." .. pool .. ".allocated"])
      assert.equal(1, d["allocation." .. pool .. ".current"])
      assert.equal(1, d["active." .. pool .. ".allocated"])
      assert.equal(0, d["allocation." .. pool .. ".freed"])
    end
    assert.equal(0, d["allocation.large_pool.allocated"])
    d = change(function() t:free() end)
    assert.equal(-1000, d["requested_bytes.all.current"])
    assert.equal(1024, d["allocated_bytes.all.freed"])
    assert.equal(1, d["allocation.small_pool.freed"])
    assert.equal(0, d["allocation.all.allocated"])
  end)

  it("a small tensor is one block of 512 bytes, on the CPU with its handle", function()
    local d, t = change(function() return dm.ones(1) end)
    assert.is_true(t ~= nil)
    assert.equal(DEVICE == "cpu" and 512 or 4, d["requested_bytes.all.current"])
    assert.equal(512, d["allocated_bytes.all.current"])
    assert.equal(1, d["allocation.all.current"])
  end)

  it("a tensor that shows other data holds none of its own beside its aliases", function()
    local t = dm.zeros(1 << 16)
    local alias, row = t.data, t:narrow(1, 2, 3)
    local d = change(function()
      t.data = dm.ones(1 << 16)
      alias:free()
    end)
    assert.equal(1 << 18, d["allocated_bytes.all.current"])
    assert.same({0.0, 0.0, 0.0}, row:totable())
    d = change(function() row:free() end)
    assert.equal(-(1 << 18), d["allocated_bytes.all.current"])
    assert.equal(1.0, t[1 << 16]:item())
  end)

  it("blocks of up to 1 MiB belong to the small pool", function()
    local small = change(function() return dm.empty(1 << 20, {dtype = "uint8"}) end)
    assert.equal(1, small["allocation.small_pool.allocated"])
    assert.equal(0, small["allocation.large_pool.allocated"])
    local large = change(function() return dm.empty((1 << 20) + 1, {dtype = "uint8"}) end)
    assert.equal(0, large["allocation.small_pool.allocated"])
    assert.equal(1, large["allocation.large_pool.allocated"])
    assert.equal((1 << 20) + 512, large["allocated_bytes.large_pool.allocated"])
  end)

  it("all is the sum of the pools, and what is not freed is current", function()
    local kept = {dm.empty(5000), dm.empty(1 << 20), dm.ones(1)}
    local s = dm.memory_stats(DEVICE)
    for _, name in ipairs(NAMES) do
      for _, field in ipairs{"current", "allocated", "freed"} do
        assert.equal(s[name .. ".all." .. field],
          s[name .. ".small_pool." .. field] + s[name .. ".large_pool." .. field])
      end
      for _, pool in ipairs(POOLS) do
        local at = name .. "." .. pool .. "."
        assert.is_true(s[at .. "peak"] >= s[at .. "current"])
        assert.is_true(s[at .. "allocated"] >= s[at .. "freed"])
      end
    end
    assert.equal(3, #kept)
  end)

  it("counts segments: a large block is one, and empty_cache gives it back", function()
    collectgarbage()
    dm.empty_cache(DEVICE)
    local small = dm.empty(1, {device = "cpu"}) -- in whose segment the large one's handle fits
    local d, t = change(function() return dm.empty(3 << 20, {dtype = "uint8"}) end)
    local segment = DEVICE == "cpu" and 3 << 20 or 20 << 20 -- CUDA's blocks share a segment
    assert.equal(1, d["segment.large_pool.current"])
    assert.equal(segment, d["reserved_bytes.large_pool.current"])
    assert.equal(1, d.num_device_alloc)
    d = change(function() t:free() end)
    assert.equal(0, d["reserved_bytes.all.current"])
    local allocated = dm.memory_allocated(DEVICE)
    d = change(function() dm.empty_cache(DEVICE) end)
    assert.equal(-segment, d["reserved_bytes.large_pool.current"])
    assert.equal(1, d.num_device_free)
    assert.equal(allocated, dm.memory_allocated(DEVICE))
    small:free()
  end)

  it("counts what could not be had", function()
    local d = change(function() pcall(dm.empty, 1 << 42) end)
    assert.is_true(d.num_ooms >= 1)
  end)
end)

describe("shorthands", function()
  it("are entries of memory_stats, and know devices", function()
    local t = dm.empty(1 << 21)
    local s = dm.memory_stats(DEVICE)
    for name, key in pairs{memory_allocated = "allocated_bytes.all.current",
      max_memory_allocated = "allocated_bytes.all.peak",
      memory_reserved = "reserved_bytes.all.current",
      max_memory_reserved = "reserved_bytes.all.peak"} do
      assert.equal(s[key], dm[name](DEVICE))
      if DEVICE ~= "cpu" then assert.equal(s[key], dm.cuda[name]()) end
      assert.equal(dm[name] "cpu", dm[name]()) -- the CPU is the default
    end
    assert.is_true(t ~= nil)
    for _, name in ipairs{"memory_stats", "memory_allocated", "max_memory_allocated",
      "memory_reserved", "max_memory_reserved", "reset_peak_memory_stats",
      "reset_accumulated_memory_stats", "empty_cache", "synchronize", "memory_summary",
      "mem_get_info"} do
      if not dm.cuda.is_available() then
        assert.refuses("no CUDA device", function() dm[name] "cuda" end)
      end
      assert.refuses("unknown device 'gpu'", function() dm[name] "gpu" end)
    end
    dm.synchronize()
  end)

  it("the peak is at least what is in use, and a reset makes it that", function()
    dm.empty(1 << 21):free()
    assert.is_true(dm.max_memory_allocated(DEVICE) >= dm.memory_allocated(DEVICE) + (8 << 20))
    dm.reset_peak_memory_stats(DEVICE)
    local s = dm.memory_stats(DEVICE)
    for _, name in ipairs(NAMES) do
      for _, pool in ipairs(POOLS) do
        local at = name .. "." .. pool .. "."
        assert.equal(s[at .. "current"], s[at .. "peak"])
      end
    end
    dm.empty(1 << 21):free()
    assert.equal(dm.memory_allocated(DEVICE) + (8 << 20), dm.max_memory_allocated(DEVICE))
  end)

  it("the peak of all is not the sum of peaks", function()
    dm.reset_peak_memory_stats(DEVICE)
    local base = dm.memory_stats(DEVICE)
    dm.empty(1 << 20, {dtype = "uint8"}):free()
    dm.empty(1 << 20):free()
    local s = dm.memory_stats(DEVICE)
    local function rise(pool)
      return s["allocated_bytes." .. pool .. ".peak"] - base["allocated_bytes." .. pool .. ".peak"]
    end
    assert.equal(1 << 20, rise "small_pool")
    assert.equal(4 << 20, rise "large_pool")
    assert.equal(4 << 20, rise "all")
  end)

  it("reset_accumulated_memory_stats sets the totals to 0, and they go on", function()
    local t = dm.empty(3000, {dtype = "uint8"})
    dm.reset_accumulated_memory_stats(DEVICE)
    local s = dm.memory_stats(DEVICE)
    for _, name in ipairs(NAMES) do
      assert.equal(0, s[name .. ".all.allocated"])
      assert.equal(0, s[name .. ".all.freed"])
    end
    assert.equal(0, s.num_ooms)
    assert.is_true(s["allocated_bytes.all.current"] >= 3072)
    t:free()
    s = dm.memory_stats(DEVICE)
    assert.equal(3072, s["allocated_bytes.small_pool.freed"])
    assert.equal(0, s["allocated_bytes.small_pool.allocated"])
  end)
end)

describe("for people", function()
  it("memory_summary is a table of usage", function()
    local text = dm.memory_summary(DEVICE)
    assert.matches("Cur Usage | +Peak Usage | +Tot Alloc | +Tot Freed", text)
    for _, row in ipairs{"Allocated memory", "Requested memory", "Reserved memory",
      "Allocations", "Segments", "from large pool", "from small pool"} do
      assert.matches(row, text)
    end
    assert.matches("Allocations +| +" .. dm.memory_stats(DEVICE)["allocation.all.current"], text)
    assert.not_matches("pool", dm.memory_summary(DEVICE, {abbreviated = true}))
    local width
    for line in text:gmatch "|[^\n]+" do
      width = width or #line
      assert.equal(width, #line)
    end
    assert.refuses("unknown option", function() dm.memory_summary(DEVICE, {short = true}) end)
  end)

  it("mem_get_info tells what is free and what there is", function()
    local free, total = dm.mem_get_info(DEVICE)
    assert.equal("integer", math.type(free))
    assert.is_true(free > 0 and free <= total)
  end)
end)

-- Pages that the process has touched for the first time, so far.
local function faults()
  local file = assert(io.open "/proc/self/stat")
  local fields = {}
  for word in file:read "a":match "%)(.*)":gmatch "%S+" do fields[#fields + 1] = word end
  file:close()
  return tonumber(fields[8])
end

describe("a training step", function()
  -- In a process of its own: how often the engine collects depends on how much Lua holds.
  it("frees activations as the backward pass goes, whatever handles are forgotten",
    function()
      local program = [[
        local dm = require "demilune"
        local device = "]] .. DEVICE .. [["
        local w = dm.zeros(1, {requires_grad = true, device = device})
        local function forward() -- 12 activations of 8 MiB, each kept for a gradient
          local x = w:expand(2 << 20)
          for _ = 1, 12 do x = x:sin() end
          return x:sum()
        end
        -- 128 MiB: the forward below is then nothing to collect for
        dm.empty(32 << 20, {device = device}):free()
        collectgarbage "stop" -- the script's own collector would find them too
        local at_end
        w:register_hook(function() at_end = dm.memory_allocated(device) end)
        local before = dm.memory_allocated(device)
        local loss = forward()
        print((dm.memory_allocated(device) - before) / 2 ^ 20)
        loss:backward()
        print((at_end - before) / 2 ^ 20)
      ]]
      local file = os.tmpname()
      local script <close> = assert(io.open(file, "w"))
      script:write(program):flush()
      local pipe <close> = assert(io.popen(("LUA_PATH='%s' LUA_CPATH='%s' lua5.4 %s"):format(
        package.path, package.cpath, file)))
      local held, left = pipe:read("n", "n")
      os.remove(file)
      assert.is_true(held > 80, tostring(held))
      assert.is_true(left < 48, tostring(left))
    end)

  it("adds the gradients of a tensor's parts into one of the whole's size", function()
    local x = dm.randn(1 << 20, 4, {requires_grad = true}) -- 16 MiB
    local y = -x
    local parts = {y:select(2, 1), y:narrow(2, 2, 2), y:slice(2, 2, 4, 2), y:diagonal()}
    local loss = 0
    for i, part in ipairs(parts) do loss = loss + i * part:sum() end
    collectgarbage()
    local peak
    y:register_hook(function() peak = dm.max_memory_allocated(DEVICE) end)
    dm.reset_peak_memory_stats(DEVICE)
    local before = dm.memory_allocated(DEVICE)
    loss:backward()
    local wanted = dm.tensor{-1.0, -2 - 3, -2, -3}:expand(1 << 20, 4):clone()
    for i = 1, 4 do wanted[i][i]:sub_(4) end
    assert.is_true(dm.equal(wanted, x.grad))
    assert.is_true(peak - before < 24 << 20, (peak - before) / 2 ^ 20 .. " MiB")
  end)
end)

it("forgotten handles are collected, unless the host stopped the collector #slow", function()
  local x = dm.zeros(1, {device = "cpu"})
  local function collections(n)
    local before = dm.memory_stats("cpu").forced_collections
    for _ = 1, n do local _ = x + 1 end
    return dm.memory_stats("cpu").forced_collections - before
  end
  assert.is_true(collections((1 << 19) + (1 << 12)) > 0)
  collectgarbage() -- much memory in use is collected for in any mode
  collectgarbage "stop"
  local ok, n = pcall(collections, 1 << 12)
  collectgarbage "restart"
  assert.is_true(ok)
  assert.equal(0, n)
end)

describe("the allocator", function()
  it("has a training step reuse its memory: no page is touched for the first time #slow", function()
    if DEVICE ~= "cpu" then return pending "of the CPU's memory" end
    local nn = dm.nn
    local model = nn.Sequential{nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)}
    local optimizer = dm.optim.Adam(model:parameters(), {lr = 1e-3})
    local x = dm.randn(256, 256) -- 65 pages, the hidden layer 128
    local function step()
      optimizer:zero_grad()
      nn.functional.mse_loss(model(x), x):backward()
      optimizer:step()
      collectgarbage()
    end
    for _ = 1, 5 do step() end
    local before = faults()
    for _ = 1, 5 do step() end
    assert.is_true(faults() - before < 60, faults() - before .. " pages")
    before = faults()
    dm.empty_cache()
    step()
    assert.is_true(faults() - before > 100, "nothing was given back")
  end)
end)
