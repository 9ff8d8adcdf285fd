-- DataLoader with pinned memory, and with batches prefetched to CUDA, gives the batches of a
-- plain loader.
local dm = require "demilune"
local data = dm.data
local both = require "spec.cuda.both"

if both.missing() then return end

-- x (n, 3) float32, y (n) int64 = i
local function pairs_of(n)
  local _ <close> = dm.device "cpu"
  local y = dm.arange(1, n)
  return data.TensorDataset(y:float():unsqueeze(2) * 10 + dm.tensor{1.0, 2.0, 3.0}, y)
end

local Squares = data.Dataset:extend "Squares"
function Squares:init(n, bad) self.n, self.bad = n, bad end
function Squares:len() return self.n end
function Squares:get(i)
  if i == self.bad then error("sample " .. i .. " is torn") end
  local _ <close> = dm.device "cpu"
  return {x = dm.tensor{i * 1.0, i * i * 1.0}, name = "s" .. i}, i
end

-- A value as text, tensors by their elements.
local function shown(v)
  if dm.is_tensor(v) then return both.bits(v) end
  if type(v) ~= "table" then return tostring(v) end
  local keys, words = {}, {}
  for key in pairs(v) do keys[#keys + 1] = key end
  table.sort(keys)
  for i, key in ipairs(keys) do words[i] = key .. "=" .. shown(v[key]) end
  return "{" .. table.concat(words, " ") .. "}"
end

local function epoch_of(loader)
  local seen = {}
  for i, x, y in loader:iter() do seen[#seen + 1] = ("%d: %s, %s"):format(i, shown(x), shown(y)) end
  return seen
end

local function with(opts, more)
  local out = {}
  for _, from in ipairs{opts, more} do
    for key, value in pairs(from) do out[key] = value end
  end
  return out
end

describe("a loader for CUDA", function()
  local kinds = {
    ["of tensors"] = {set = pairs_of(23), opts = {num_workers = 0}},
    ["of tensors, with workers"] = {set = pairs_of(23), opts = {num_workers = 2}},
    ["of Lua's samples"] = {set = Squares(23), opts = {}},
  }
  for name, kind in pairs(kinds) do
    local opts = with(kind.opts, {batch_size = 4, shuffle = true, seed = 3})

    it(name .. " gives the CPU's batches in their order", function()
      local plain = data.DataLoader(kind.set, opts)
      local pinned = data.DataLoader(kind.set, with(opts, {pin_memory = true}))
      local there = data.DataLoader(kind.set, with(opts, {device = "cuda"}))
      for _ = 1, 2 do
        local want = epoch_of(plain)
        assert.equal(6, #want)
        assert.same(want, epoch_of(pinned))
        assert.same(want, epoch_of(there))
      end
    end)

    it(name .. " puts them where it was told", function()
      local function devices(more)
        local x, y = select(2, data.DataLoader(kind.set, with(opts, more)):iter()())
        x = dm.is_tensor(x) and x or x.x
        return {x.device, y.device, x:is_pinned(), y:is_pinned()}
      end
      assert.same({"cpu", "cpu", false, false}, devices{})
      assert.same({"cpu", "cpu", false, false}, devices{device = "cpu"})
      assert.same({"cpu", "cpu", true, true}, devices{pin_memory = true})
      assert.same({"cuda:0", "cuda:0", false, false}, devices{device = "cuda"})
      if dm.cuda.device_count() > 1 then
        assert.same({"cuda:1", "cuda:1", false, false}, devices{device = "cuda:1"})
      end
    end)

    it(name .. " goes on where it was saved, whatever it has prefetched", function()
      opts = with(opts, {device = "cuda"})
      local whole, part = data.DataLoader(kind.set, opts), data.DataLoader(kind.set, opts)
      local want, state = epoch_of(whole), nil
      for i in part:iter() do
        state = part:state_dict()
        if i == 2 then break end
      end
      assert.equal(2, state.position)
      local resumed = data.DataLoader(kind.set, opts)
      resumed:load_state_dict(state)
      assert.same({table.unpack(want, 3)}, epoch_of(resumed))
    end)

    it(name .. " may be left at any moment", function()
      local loader = data.DataLoader(kind.set, with(opts, {device = "cuda"}))
      local want = epoch_of(data.DataLoader(kind.set, opts))
      loader:iter()() -- and no more of it
      pcall(function() for _ in loader:iter() do error "stop" end end)
      loader:load_state_dict{seed = 3, epoch = 1, position = 0}
      assert.same(want, epoch_of(loader))
    end)
  end

  it("raises what a data set raises, when its batch is due", function()
    for _, more in ipairs{{}, {pin_memory = true}, {device = "cuda"}} do
      local loader = data.DataLoader(Squares(10, 8), with({batch_size = 2}, more))
      local last
      local ok, message = pcall(function() for i in loader:iter() do last = i end end)
      assert.is_false(ok)
      assert.matches("sample 8 is torn", message)
      assert.equal(3, last)
    end
  end)

  it("goes on after a batch that cannot be made, and from there", function()
    for _, more in ipairs{{pin_memory = true}, {device = "cuda"}} do
      local set, opts = Squares(10, 4), with({batch_size = 3}, more)
      local loader = data.DataLoader(set, opts)
      local next_batch = loader:iter()
      assert.equal(1, (next_batch()))
      assert.equal(1, loader:state_dict().position) -- the next batch is prefetched
      assert.is_false(pcall(next_batch))
      local state = loader:state_dict()
      assert.equal(2, state.position)
      local resumed = data.DataLoader(set, opts)
      resumed:load_state_dict(state)
      for _, step in ipairs{next_batch, (resumed:iter())} do
        local i, x = step()
        assert.same({3, 7 * 7}, {i, x.x[{1, 2}]:item()})
        assert.equal(4, (step()))
        assert.is_nil((step()))
      end
    end
  end)

  it("gives batches that no scope takes away, and that may be kept", function()
    local kept = {}
    local next_batch = data.DataLoader(pairs_of(12), {batch_size = 2, device = "cuda"}):iter()
    for _ = 1, 6 do
      local _ <close> = dm.scope()
      kept[#kept + 1] = dm.keep(select(2, next_batch()))
    end
    collectgarbage()
    for i, x in ipairs(kept) do
      assert.same({{20.0 * i - 9, 20.0 * i - 8, 20.0 * i - 7}, {20.0 * i + 1, 20.0 * i + 2,
        20.0 * i + 3}}, x:totable())
    end
  end)

  it("serves the stream in which it is asked", function()
    local stream, sum = dm.cuda.Stream(), 0
    dm.cuda.stream(stream, function()
      for _, x in data.DataLoader(pairs_of(64), {batch_size = 4, device = "cuda"}):iter() do
        sum = sum + x:select(2, 1):sum():item()
      end
    end)
    assert.equal(10 * 64 * 65 / 2 + 64, sum)
  end)

  it("copies a pinned part, or what was pinned for another device, as it is", function()
    local x = dm.arange(1, 100, {device = "cpu"}):pin_memory()
    assert.same({11, 12, 13}, x:narrow(1, 11, 3):to("cuda", {non_blocking = true}):totable())
    local last = "cuda:" .. dm.cuda.device_count() - 1
    local y = x:to(last, {non_blocking = true})
    x:free()
    dm.zeros(100, {dtype = "int64", device = "cpu"}):pin_memory()
    assert.equal(5050, y:sum():item())
  end)

  it("makes Lua feel what pinned batches hold", function()
    local x, before = dm.zeros(1 << 20, {device = "cpu"}), dm.memory_stats().forced_collections
    for _ = 1, 200 do x:pin_memory() end
    assert(dm.memory_stats().forced_collections > before)
    assert.equal(0, dm.cuda.memory_stats().num_ooms)
  end)

  both.it_counts("waits for the device in no batch, and takes pinned memory once", function()
    local count = dm.cuda._count
    local loader = data.DataLoader(pairs_of(400), {batch_size = 4, num_workers = 2,
      device = "cuda"})
    local function epoch()
      local before, last = {count "sync", count "host_malloc", count "malloc"}, nil
      for _, x, y in loader:iter() do last = (x:select(2, 1) + y):sum() end
      local after = {count "sync", count "host_malloc", count "malloc"}
      assert.equal(11 * (397 + 398 + 399 + 400) + 4, last:item())
      return {after[1] - before[1], after[2] - before[2], after[3] - before[3]}
    end
    epoch()
    assert.same({0, 0, 0}, epoch())
  end)

  it("refuses what is no device", function()
    assert.refuses("loader_spec.lua:%d+: .*cuda:77", function()
      data.DataLoader(pairs_of(4), {device = "cuda:77"})
    end)
    assert.matches(", on cuda:0%)$", tostring(data.DataLoader(pairs_of(4), {device = "cuda"})))
    assert.matches(", pinned%)$", tostring(data.DataLoader(pairs_of(4), {pin_memory = true})))
  end)
end)
