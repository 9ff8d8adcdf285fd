-- Iterable data sets, errors in samples, and token files that are mapped instead of read.

local dm = require "demilune"
local data, text = dm.data, dm.text
local folder = require "spec.folder"
setup(folder.make)
teardown(folder.remove)

local Count = data.IterableDataset:extend "Count"
function Count:init(first, last) self.first, self.last = first, last end
function Count:iter()
  local i = self.first - 1
  return function()
    i = i + 1
    if i <= self.last then return i, dm.ones(2) * i end
  end
end

local function batches(loader)
  local all = {}
  for _, x in loader:iter() do all[#all + 1] = x:totable() end
  return all
end

describe("IterableDataset:", function()
  it("comes in batches", function()
    local loader = data.DataLoader(Count(1, 5), {batch_size = 2})
    local shapes = {}
    for i, x, y in loader:iter() do
      assert.equal(2 * i - 1, x[1]:item())
      shapes[i] = {table.unpack(y.shape)}
    end
    assert.same({{2, 2}, {2, 2}, {1, 2}}, shapes)
    assert.same({{1, 2}, {3, 4}, {5}}, batches(loader)) -- and again
    assert.same({{1, 2}, {3, 4}},
      batches(data.DataLoader(Count(1, 5), {batch_size = 2, drop_last = true})))
    assert.same({}, batches(data.DataLoader(Count(1, 0))))
    local sizes = {}
    for _, n in data.DataLoader(Count(1, 5), {batch_size = 3, collate_fn = function(samples)
      return #samples
    end}):iter() do sizes[#sizes + 1] = n end
    assert.same({3, 2}, sizes)
  end)

  it("is collated by default_collate, which a collate_fn may end in", function()
    local x, y = data.default_collate{{1, dm.ones(2)}, {2, dm.zeros(2)}}
    assert.same({{1, 2}, {{1, 1}, {0, 0}}}, {x:totable(), y:totable()})
    for _, z in data.DataLoader(Count(1, 2), {batch_size = 2, collate_fn = function(samples)
      for _, one in ipairs(samples) do one[1] = -one[1] end
      return data.default_collate(samples)
    end}):iter() do assert.same({-1, -2}, z:totable()) end
  end)

  it("may be a plain table, with state, a length, and something to close", function()
    local closed, epochs = 0, {}
    local plain = {
      len = function() return 4 end,
      iter = function(_, epoch)
        epochs[#epochs + 1] = epoch
        local function step(last, i) if i < last then return i + 1 end end
        return step, 4, 0, setmetatable({}, {__close = function() closed = closed + 1 end})
      end,
    }
    local loader = data.DataLoader(plain, {batch_size = 3})
    assert.equal(2, #loader)
    assert.same({{1, 2, 3}, {4}}, batches(loader))
    assert.equal(1, closed)
    loader:iter()()
    loader:finish()
    assert.equal(2, closed)
    assert.same({1, 2}, epochs)
    assert.equal("DataLoader(4 samples, 2 batches of 3, 0 workers)", tostring(loader))
  end)

  it("says that its length is not known", function()
    local loader = data.DataLoader(Count(1, 5), {batch_size = 2})
    assert.is_nil(loader:len())
    assert.refuses("stream_spec.lua:%d+: DataLoader: how many batches a Count gives is not known",
      function() return #loader end)
    assert.refuses("Count: how many samples it gives is not known", function()
      return #Count(1, 5)
    end)
    assert.equal("DataLoader(Count(a stream), batches of 2, 0 workers)", tostring(loader))
    local seen = 0
    for _ in dm.progress(loader, {file = io.tmpfile()}) do seen = seen + 1 end
    assert.equal(3, seen)
  end)

  it("goes on amid an epoch", function()
    local loader = data.DataLoader(Count(1, 9), {batch_size = 2})
    local state
    for i in loader:iter() do
      if i == 2 then
        state = loader:state_dict()
        break
      end
    end
    local resumed = data.DataLoader(Count(1, 9), {batch_size = 2})
    resumed:load_state_dict(state)
    assert.same({{5, 6}, {7, 8}, {9}}, batches(resumed))
    resumed:load_state_dict{seed = 1, epoch = 1, position = 90}
    assert.same({}, batches(resumed))
  end)

  it("comes in its own order, from one worker at most", function()
    for name, value in pairs{shuffle = true, sampler = data.SequentialSampler(data.TensorDataset(
      dm.ones(2))), batch_sampler = {batches = print, len = print}} do
      assert.refuses(name .. " with a stream", function()
        data.DataLoader(Count(1, 2), {[name] = value})
      end)
    end
    assert.same(batches(data.DataLoader(Count(1, 9), {batch_size = 2})),
      batches(data.DataLoader(Count(1, 9), {batch_size = 2, num_workers = 3})))
    assert.refuses("wanted a data set", function() data.Subset(Count(1, 2), {1}) end)
    assert.refuses("Empty has no iter", function()
      batches(data.DataLoader(data.IterableDataset:extend "Empty"()))
    end)
  end)

  it("ChainDataset is one after the other, each closed at its end", function()
    local log = {}
    local function named(name, n)
      return {len = function() return n end, iter = function()
        log[#log + 1] = "open " .. name
        return function(_, i) if i < n then return i + 1 end end, nil, 0,
          setmetatable({}, {__close = function() log[#log + 1] = "close " .. name end})
      end}
    end
    local chain = data.ChainDataset{named("a", 2), named("b", 0), named("c", 2)}
    assert.equal(4, #chain)
    local loader = data.DataLoader(chain, {batch_size = 3})
    assert.same({{1, 2, 1}, {2}}, batches(loader))
    assert.same({"open a", "close a", "open b", "close b", "open c", "close c"}, log)
    log = {}
    loader:iter()()
    loader:finish()
    assert.same({"open a", "close a", "open b", "close b", "open c", "close c"}, log)
    local unknown = data.ChainDataset{named("a", 2), Count(1, 2)}
    assert.is_nil(unknown:len())
    assert.refuses("ChainDataset: how many samples", function() return #unknown end)
    assert.refuses("2: wanted a stream", function()
      data.ChainDataset{Count(1, 2), data.TensorDataset(dm.ones(2))}
    end)
    assert.refuses("got none", function() data.ChainDataset{} end)
  end)
end)

describe("An error in a sample", function()
  local function broken(what)
    local function inner(i)
      if i == 5 then error(what) end
      return i
    end
    return {len = function() return 8 end, get = function(_, i)
      local v = inner(i)
      return v
    end}
  end

  it("is told with its number and the stack of what made it", function()
    local ok, why = pcall(batches, data.DataLoader(broken "no such image", {batch_size = 2}))
    assert.is_false(ok)
    assert.matches("^DataLoader: sample 5: [^\n]*stream_spec.lua:%d+: no such image\n", why)
    assert.matches("stack traceback:.*stream_spec.lua:%d+: in upvalue 'inner'", why)
    assert.is_nil(why:find("xpcall", 1, true)) -- the loader's own part is left out
    local Broken = data.IterableDataset:extend "Broken"
    function Broken:iter() return coroutine.wrap(function() -- luacheck: ignore 212
      coroutine.yield(1)
      error "the stream broke"
    end) end
    ok, why = pcall(batches, data.DataLoader(Broken(), {batch_size = 4}))
    assert.is_false(ok)
    assert.matches("^DataLoader: sample 2: [^\n]*the stream broke", why)
  end)

  it("that is no text passes as it is", function()
    local object = {code = 7}
    local ok, why = pcall(batches, data.DataLoader(broken(object)))
    assert.is_false(ok)
    assert.equal(object, why)
  end)

  -- Steps through a loader by hand: {[batch number] = its samples}, {"what failed", ...}.
  local function steps(next_batch)
    local seen, failed = {}, {}
    while true do
      local ok, i, x = pcall(next_batch)
      if ok and not i then return seen, failed end
      if ok then seen[i] = x:totable() else failed[#failed + 1] = i:match "torn %d+" end
    end
  end
  local TORN = {[5] = true, [10] = true}
  local function checked(i)
    if TORN[i] then error("torn " .. i) end
    return i
  end
  local set = {len = function() return 14 end, get = function(_, i) return checked(i) end}
  local stream = {iter = function()
    local at = 0
    return function()
      at = at + 1
      return at <= 14 and checked(at) or nil
    end
  end}

  it("costs its batch and no other", function()
    local wanted, torn = {{1, 2, 3}, [3] = {7, 8, 9}, [5] = {13, 14}}, {"torn 5", "torn 10"}
    for _, source in ipairs{set, stream} do
      local seen, failed = steps(data.DataLoader(source, {batch_size = 3}):iter())
      assert.same(wanted, seen)
      assert.same(torn, failed)
    end
    local cut = {len = function() return 3 end, batches = function()
      return {{4, 5, 6, 7}, {8, 9}, {10}, {1, 2, 3}}
    end}
    local seen, failed = steps(data.DataLoader(set, {batch_sampler = cut}):iter())
    assert.same({[2] = {8, 9}, [4] = {1, 2, 3}}, seen)
    assert.same(torn, failed)
  end)

  it("is passed when a loop is taken up after it", function()
    for _, source in ipairs{set, stream} do
      local loader = data.DataLoader(source, {batch_size = 3})
      local next_batch = loader:iter()
      next_batch()
      assert.is_false(pcall(next_batch))
      local state = loader:state_dict()
      assert.equal(2, state.position)
      local resumed = data.DataLoader(source, {batch_size = 3})
      resumed:load_state_dict(state)
      local seen, failed = steps(resumed:iter())
      assert.same({[3] = {7, 8, 9}, [5] = {13, 14}}, seen)
      assert.same({"torn 10"}, failed)
    end
  end)

  it("may be that there is none", function()
    local none = {len = function() return 3 end, get = function() end}
    assert.refuses("get%(1%) gave nil", function() batches(data.DataLoader(none)) end)
  end)
end)

-- ---- files of tokens ----

local function ids(list) return dm.tensor(list, {dtype = "int64", device = "cpu"}) end

-- Resident memory of this process in bytes, or nil where the system does not tell.
local function resident()
  local f <close> = io.open "/proc/self/statm"
  return f and tonumber(f:read("a"):match "%d+ (%d+)") * 4096
end

describe("TokenFile", function()
  it("gives what was written, from 1, of 16 and of 32 bits", function()
    for dtype, list in pairs{uint16 = {1, 65536, 7}, int32 = {1, 65537, 1 << 31}} do
      local path = folder.path "t.bin"
      assert(text.write_tokens(path, ids(list), {dtype = dtype}))
      local file = assert(data.TokenFile(path))
      assert.equal(3, #file)
      assert.same(list, file:read(1, 3):totable())
      assert.same({list[3]}, file:narrow(1, 2, 2):narrow(1, 2, 1):read(1, 1):totable())
      assert.same(list, text.read_tokens(path):totable())
      assert.equal("TokenFile(3 tokens)", tostring(file))
    end
    local plain = folder.write("plain.bin", ("<i4i4"):pack(3, 70000))
    assert.same({4, 70001}, data.TokenFile(plain, {dtype = "int32"}):read(1, 2):totable())
    assert.equal(4, #data.TokenFile(plain))
    assert.same({}, data.TokenFile(folder.write("none.bin", "")):read(1, 0):totable())
  end)

  it("says what is wrong with a file, and with a call", function()
    local function fails(content, pattern, opts)
      local file, why = data.TokenFile(folder.write("bad.bin", content), opts)
      assert.is_nil(file)
      assert.matches(pattern, why)
    end
    fails("abc", "3 bytes of tokens")
    fails("abcdef", "6 bytes of tokens, wanted 4", {dtype = "int32"})
    fails(("<i4i4i4"):pack(20240520, 1, 9) .. ("\0"):rep(1012), "0 tokens, its head says 9")
    fails(("<i4i4i4"):pack(20240801, 7, 1) .. ("\0"):rep(1014), "2 bytes of tokens")
    fails(("<i4i4i4"):pack(20240520, 1, 0) .. ("\0"):rep(1012), "a token has 16 bits, not 32",
      {dtype = "int32"})
    local file, why = data.TokenFile(folder.path "nowhere")
    assert.is_nil(file)
    assert.matches("No such file", why)
    assert.matches("not a regular file", select(2, data.TokenFile(folder.path())))
    file = data.TokenFile(folder.write("neg.bin", ("<i4i4"):pack(3, -2)), {dtype = "int32"})
    assert.matches("token 2 is %-2", select(2, file:read(1, 2)))
    for _, call in ipairs{{0, 1}, {1, 3}, {3, 1}, {1, -1}, {1, 1.5}, {"x", 1},
      {math.maxinteger, 1}, {1, math.maxinteger}, {2}} do
      assert.refuses("tokens from", function() file:read(table.unpack(call)) end)
      assert.refuses("tokens from", function() file:narrow(1, table.unpack(call)) end)
    end
    assert.refuses("dim is 2", function() file:narrow(2, 1, 1) end)
    assert.refuses("dtype is 'int64'", function() data.TokenFile("x", {dtype = "int64"}) end)
    assert.refuses("path is 3, wanted a string", function() data.TokenFile(3) end)
  end)

  it("windows of it are those of its ids, by any number of threads", function()
    local list = {}
    for i = 1, 500 do list[i] = i * 131 % 65536 + 1 end
    local path = folder.path "w.bin"
    assert(text.write_tokens(path, list))
    local opts = {length = 16, step = 7}
    local held = text.Windows(ids(list):narrow(1, 11, 400), opts)
    local read = text.Windows(data.TokenFile(path):narrow(1, 11, 400), opts)
    assert.equal(#held, #read)
    for _, i in ipairs{1, 2, #held} do
      local x, y = held:get(i)
      local u, v = read:get(i)
      assert.is_true(dm.equal(x, u) and dm.equal(y, v))
    end
    local function epoch(set, workers)
      local all = {}
      for _, x, y in data.DataLoader(set, {batch_size = 8, shuffle = true, seed = 2,
        num_workers = workers}):iter() do
        all[#all + 1] = {x:totable(), y:totable()}
      end
      return all
    end
    local want = epoch(held, 0)
    for _, workers in ipairs{0, 1, 3} do assert.same(want, epoch(read, workers)) end
    assert.same(epoch(data.Subset(held, {3, 9}), 1), epoch(data.Subset(read, {3, 9}), 1))
    assert.equal(1, #text.Windows(data.TokenFile(path), {length = 499}))
    assert.refuses("500 ids are too few", function()
      text.Windows(data.TokenFile(path), {length = 500})
    end)
  end)

  it("does not lie in memory, and may be larger than it", function()
    local path = folder.path "large.bin"
    local f = assert(io.open(path, "wb")) -- 256 MiB of zeros but for the last token
    f:seek("set", (1 << 28) - 2)
    f:write "\5\0"
    f:close()
    local before = resident()
    if not before then return pending "the system does not tell a process's memory" end
    local set = text.Windows(data.TokenFile(path), {length = 1024, step = 16384})
    local sum = 0
    for _, x, y in data.DataLoader(set, {batch_size = 64, num_workers = 2}):iter() do
      sum = sum + y:sum():item() - y:numel()
      x:free()
      y:free()
    end
    assert.is_true(resident() - before < 2 ^ 25, resident() - before)
    assert.equal(0, sum) -- the last token lies in no window
    assert.equal(6, data.TokenFile(path):read(1 << 27, 1)[1]:item())
  end)

  it("that becomes shorter is an error for whoever asks", function()
    local path = folder.path "shrinks.bin"
    for _, workers in ipairs{0, 2} do
      assert(text.write_tokens(path, dm.arange(3000, {device = "cpu"})))
      local file = data.TokenFile(path)
      local set = text.Windows(file, {length = 100, step = 100})
      local cut = folder.read "shrinks.bin":sub(1, 2000)
      folder.write("shrinks.bin", cut)
      local loader = data.DataLoader(set, {batch_size = 2, num_workers = workers})
      local good = 0
      assert.refuses("shrinks.bin' became shorter", function()
        for _ in loader:iter() do good = good + 1 end
      end)
      assert.equal(2, good) -- 488 tokens are left
      assert.refuses("became shorter", function() set:get(20) end)
      assert.matches("became shorter", select(2, file:read(2000, 10)))
    end
  end)
end)
