-- Data sets, the loader, the readers, and the progress bar.

local dm = require "demilune"
local hooks = require("demilune.core")._test
local data, datasets = dm.data, dm.datasets

local folder = require "spec.folder"
local path, write, run = folder.path, folder.write, folder.run
setup(folder.make)
teardown(folder.remove)

-- Threads of this process, or nil where the system does not tell.
local function threads()
  local f = io.open "/proc/self/status"
  if not f then return nil end
  local n = f:read("a"):match "Threads:%s*(%d+)"
  f:close()
  return tonumber(n)
end

-- A thread that was joined is counted for a moment still: the least of 50 milliseconds.
local function settled_threads()
  local start, least = os.clock(), threads()
  while least and os.clock() < start + 0.05 do least = math.min(least, threads()) end
  return least
end
local function assert_threads(want)
  local patience = os.clock() + 5
  while threads() ~= want and os.clock() < patience do end
  assert.equal(want, threads())
end

-- x (n, 3) float32 = 10 i + column, y (n) int64 = i
local function pairs_of(n)
  local y = dm.arange(n)
  return data.TensorDataset(y:to("float32"):unsqueeze(2) * 10 + dm.tensor{1.0, 2.0, 3.0}, y)
end

-- The samples of an epoch in the order in which they come, as text.
local function order_of(loader)
  local seen = {}
  for _, x, y in loader:iter() do
    assert.is_true(dm.equal(x:select(2, 1), y:to("float32") * 10 + 1))
    for _, v in ipairs(y:totable()) do seen[#seen + 1] = v end
    seen[#seen + 1] = "|"
  end
  return table.concat(seen, " ")
end

describe("TensorDataset and other data sets:", function()
  it("a sample is a row of each tensor", function()
    local set = pairs_of(4)
    local x, y = set:get(3)
    assert.same({31.0, 32.0, 33.0}, x:totable())
    assert.equal(3, y:item())
    assert.equal(4, #set)
    assert.equal("TensorDataset(4 samples)", tostring(set))
  end)

  it("positions count from 1 and have an end", function()
    local set = pairs_of(4)
    assert.has_error(function() set:get(0) end)
    local ok, message = pcall(set.get, set, 5)
    assert.is_false(ok)
    assert.matches("sample 5, there are 4", message)
  end)

  it("rows must match, and the error names the caller's line", function()
    local ok, message = pcall(function() data.TensorDataset(dm.ones(3, 2), dm.ones(4)) end)
    assert.is_false(ok)
    assert.matches("data_spec.lua:%d+: TensorDataset: tensor 2 has 4 rows, tensor 1 has 3", message)
  end)

  it("a Subset of a Subset maps positions", function()
    local inner = data.Subset(pairs_of(10), {2, 4, 6, 8})
    local set = data.Subset(inner, {4, 1})
    assert.equal(8, select(2, set:get(1)):item())
    assert.equal("8 2 |", order_of(data.DataLoader(set, {batch_size = 2})))
    assert.has_error(function() data.Subset(inner, {5}) end)
    assert.has_error(function() data.Subset(inner, {0}) end)
  end)

  it("orders may come from a generator, which moves on", function()
    local set = pairs_of(20)
    local function orders(g)
      local a = data.random_split(set, {15, 5}, {generator = g})
      local b = data.random_split(set, {15, 5}, {generator = g})
      local loader = data.DataLoader(set, {batch_size = 20, shuffle = true, generator = g})
      local sampler = data.RandomSampler(set, {generator = g})
      local _, x = loader:iter()()
      return {a.indices:totable(), b.indices:totable(), x:flatten():totable(),
        sampler:order(1):totable()}, loader.seed
    end
    local g = dm.Generator():manual_seed(7)
    local first, seed = orders(g)
    assert.not_same(first[1], first[2])
    assert.not_same(first, (orders(g)))
    local again, same_seed = orders(g:manual_seed(7))
    assert.same(first, again)
    assert.equal(seed, same_seed)
    local state = g:get_state()
    for text, opts in pairs{
      ["random_split: seed and generator: one of them"] = {seed = 1, generator = g},
      ["random_split: generator is 3, wanted dm.Generator()"] = {generator = 3},
      ["random_split: generator is a tensor, wanted dm.Generator()"] = {generator = dm.ones(1)},
      ["random_split: seed is 'x', wanted an integer"] = {seed = "x"},
    } do
      local ok, message = pcall(function() data.random_split(set, {15, 5}, opts) end)
      assert.is_false(ok)
      assert.matches(text, message, 1, true)
    end
    assert.has_error(function() data.random_split(set, {15, 6}, {generator = g}) end)
    assert.has_error(function() data.DataLoader(set, {generator = g, batch_size = 0}) end)
    assert.same(state, g:get_state()) -- what is refused draws nothing
  end)

  it("random_split shares nothing and keeps all, by counts and by fractions", function()
    local a, b = data.random_split(pairs_of(10), {7, 3}, {seed = 1})
    local seen = {}
    for _, part in ipairs{a, b} do
      for i = 1, #part do seen[select(2, part:get(i)):item()] = true end
    end
    assert.same({7, 3, 10}, {#a, #b, #seen})
    local thirds = {data.random_split(pairs_of(10), {1 / 3, 1 / 3, 1 / 3}, {seed = 1})}
    assert.same({4, 3, 3}, {#thirds[1], #thirds[2], #thirds[3]})
    assert.has_error(function() data.random_split(pairs_of(10), {7, 2}) end)
    local again = data.random_split(pairs_of(10), {7, 3}, {seed = 1})
    assert.same(a.indices:totable(), again.indices:totable())
  end)
end)

describe("DataLoader:", function()
  it("covers every sample, in batches, the last one short", function()
    local loader = data.DataLoader(pairs_of(10), {batch_size = 4})
    assert.equal("1 2 3 4 | 5 6 7 8 | 9 10 |", order_of(loader))
    assert.equal(3, #loader)
    local dropping = data.DataLoader(pairs_of(10), {batch_size = 4, drop_last = true})
    assert.equal("1 2 3 4 | 5 6 7 8 |", order_of(dropping))
    assert.equal(2, dropping:len())
  end)

  it("counts batches from 1", function()
    local at = {}
    for i in data.DataLoader(pairs_of(5), {batch_size = 2}):iter() do at[#at + 1] = i end
    assert.same({1, 2, 3}, at)
  end)

  it("gives the same order for any number of workers, a new one each epoch", function()
    local orders = {}
    for _, workers in ipairs{0, 1, 3} do
      local loader = data.DataLoader(pairs_of(103),
        {batch_size = 8, shuffle = true, num_workers = workers, seed = 5, prefetch_factor = 3})
      orders[#orders + 1] = {order_of(loader), order_of(loader), order_of(loader)}
    end
    assert.same(orders[1], orders[2])
    assert.same(orders[1], orders[3])
    assert.are_not.equal(orders[1][1], orders[1][2])
    assert.are_not.equal(orders[1][2], orders[1][3])
  end)

  it("shuffles without favour", function()
    local first = {0, 0, 0, 0}
    for epoch = 1, 4000 do
      local p = dm.permutation(4, 9, epoch)
      first[p[1]:item()] = first[p[1]:item()] + 1
    end
    -- 4,000 draws of probability 1/4: deviation 27, five of them allowed
    for k = 1, 4 do assert.is_true(math.abs(first[k] - 1000) < 137, first[k]) end
  end)

  it("handles an empty data set", function()
    local none = data.TensorDataset(dm.zeros(0, 3), dm.zeros(0, {dtype = "int64"}))
    for _, workers in ipairs{0, 2} do
      local loader = data.DataLoader(none, {batch_size = 4, shuffle = true, num_workers = workers})
      assert.equal(0, #loader)
      assert.equal("", order_of(loader))
    end
  end)

  it("reads views and keeps freed tensors", function()
    local base = dm.arange(12):reshape(3, 4)
    local view = base:t()
    local loader = data.DataLoader(data.TensorDataset(view), {batch_size = 4, num_workers = 1})
    for _, x in loader:iter() do
      base:free()
      assert.same({{1, 5, 9}, {2, 6, 10}, {3, 7, 11}, {4, 8, 12}}, x:totable())
    end
  end)

  it("stops its workers on break, on an error, and at the end", function()
    local loader = data.DataLoader(pairs_of(1000), {batch_size = 2, num_workers = 3})
    order_of(loader)
    local before = settled_threads()
    for i in loader:iter() do
      if before then assert.equal(before + 3, threads()) end
      if i == 2 then break end
    end
    assert_threads(before)
    assert.has_error(function()
      for _ in loader:iter() do error "stop" end
    end)
    assert_threads(before)
    order_of(loader)
    assert_threads(before)
  end)

  -- Lua before 5.4.5 forgets the loop's closing value here, and calls what lies in its place
  it("may be left by break from a block that has something to close", function()
    local loader = data.DataLoader(pairs_of(100), {batch_size = 2, num_workers = 1})
    local function first()
      for i in dm.progress(loader, {file = io.tmpfile()}) do
        local _ <close> = dm.scope()
        if i == 2 then break end
      end
      for _, x in loader:iter() do
        local _ <close> = dm.scope()
        if #x == 2 then break end
      end
      local a, b, c, d, e = 1, 2, 3, 4, 5
      return a + b + c + d + e
    end
    assert.equal(15, first())
    loader:finish()
    assert.matches(" 100 |$", order_of(loader))
  end)

  it("may be run inside itself", function()
    local loader = data.DataLoader(pairs_of(4), {batch_size = 2, num_workers = 1})
    local pairs_seen = 0
    for _ in loader:iter() do
      for _ in loader:iter() do pairs_seen = pairs_seen + 1 end
    end
    assert.equal(4, pairs_seen)
  end)

  it("goes on where its state was taken: between epochs and amid one", function()
    for _, workers in ipairs{0, 2} do
      local opts = {batch_size = 4, shuffle = true, seed = 3, num_workers = workers}
      local whole = data.DataLoader(pairs_of(20), opts)
      local first, second = order_of(whole), order_of(whole)
      assert.same({seed = 3, epoch = 3, position = 0}, whole:state_dict())

      local part = data.DataLoader(pairs_of(20), opts)
      assert.equal(first, order_of(part))
      local state = part:state_dict()
      local seen = {}
      local amid
      for i, _, y in part:iter() do
        seen[#seen + 1] = table.concat(y:totable(), " ")
        if i == 2 then
          amid = part:state_dict()
          break
        end
      end
      assert.same({seed = 3, epoch = 2, position = 2}, amid)

      opts.seed = 99
      local resumed = data.DataLoader(pairs_of(20), opts)
      resumed:load_state_dict(state)
      assert.equal(second, order_of(resumed))

      resumed:load_state_dict(amid)
      for i, _, y in resumed:iter() do
        assert.equal(#seen + 1, i)
        seen[#seen + 1] = table.concat(y:totable(), " ")
      end
      assert.equal(second, table.concat(seen, " | ") .. " |")
      opts.seed = nil
    end
  end)

  it("takes a sampler", function()
    local set = pairs_of(6)
    local loader = data.DataLoader(set,
      {batch_size = 2, sampler = data.SubsetRandomSampler({2, 4, 6}, {seed = 1})})
    assert.equal(2, #loader)
    local seen = {}
    for _, _, y in loader:iter() do
      for _, v in ipairs(y:totable()) do seen[#seen + 1] = v end
    end
    table.sort(seen)
    assert.same({2, 4, 6}, seen)

    local Backwards = data.Sampler:extend "Backwards"
    function Backwards:init(n) self.n = n end
    function Backwards:order()
      local list = {}
      for i = self.n, 1, -1 do list[#list + 1] = i end
      return list
    end
    assert.equal("6 5 4 | 3 2 1 |",
      order_of(data.DataLoader(set, {batch_size = 3, sampler = Backwards(6)})))
    assert.has_error(function() data.DataLoader(set, {sampler = Backwards(6), shuffle = true}) end)
  end)

  it("refuses what it does not know, with the nearest name and the caller's line", function()
    local ok, message = pcall(function() data.DataLoader(pairs_of(4), {batch_sise = 2}) end)
    assert.is_false(ok)
    assert.matches("data_spec.lua:%d+: DataLoader: unknown option 'batch_sise'; did you mean "
      .. "'batch_size'?", message)
    for _, bad in ipairs{{batch_size = 0}, {batch_size = 1.5}, {num_workers = -1},
      {num_workers = 1000}, {prefetch_factor = 0}, {seed = "x"}, {collate_fn = 1}} do
      assert.has_error(function() data.DataLoader(pairs_of(4), bad) end)
    end
    assert.has_error(function() data.DataLoader(dm.ones(3)) end)
    assert.has_error(function() data.DataLoader(nil) end)
    local Half = data.Dataset:extend "Half"
    function Half.__getitem() return 1 end
    assert.refuses("Half has no len%(%); hint: function Half:len%(%)",
      function() return #Half() end)
    assert.refuses("Half has no get%(i%); hint: function Half:get%(i%)",
      function() Half():get(1) end)
    local loader = data.DataLoader(pairs_of(4))
    assert.has_error(function() loader:load_state_dict{epoch = 1} end)
  end)

  it("batches do not depend on a scope that closes", function()
    local sum = 0
    for _, x in data.DataLoader(pairs_of(8), {batch_size = 2, num_workers = 1}):iter() do
      local _ <close> = dm.scope()
      sum = sum + x:sum():item()
    end
    assert.equal(10 * 3 * 36 + 6 * 8, sum)
  end)

  it("a failing allocation raises, and the next try works", function()
    local set = pairs_of(64)
    for n = 1, 40 do
      local loader = data.DataLoader(set, {batch_size = 8, num_workers = 2, seed = 1})
      hooks.alloc_fail_at(n, true)
      local ok, message = pcall(function()
        for _ in loader:iter() do end -- luacheck: ignore 542
      end)
      hooks.alloc_fail_at(0, false)
      if not ok then assert.matches("memory", message) end
    end
    collectgarbage()
    assert.equal("1 2 |", order_of(data.DataLoader(data.Subset(set, {1, 2}), {batch_size = 2})))
  end)

  it("a batch for which memory was short comes with the next call", function()
    local set, failures = pairs_of(12), 0
    for _, workers in ipairs{0, 2} do
      for n = 1, 6 do
        local loader = data.DataLoader(set, {batch_size = 2, num_workers = workers})
        local next_batch = loader:iter()
        local first = select(3, next_batch()):totable()
        hooks.alloc_fail_at(n, true)
        local ok = pcall(next_batch)
        hooks.alloc_fail_at(0, false)
        if not ok then
          failures = failures + 1
          assert.equal(1, loader:state_dict().position)
          local i, _, y = next_batch()
          assert.equal(2, i)
          assert.same({first[1] + 2, first[2] + 2}, y:totable())
        end
        loader:finish()
      end
    end
    assert.is_true(failures >= 4)
  end)

  it("Ctrl-C ends it", function()
    local script = write("endless.lua", ([[
      package.path, package.cpath = %q, %q
      local dm = require "demilune"
      local set = dm.data.TensorDataset(dm.zeros(512, 64))
      local loader = dm.data.DataLoader(set, {batch_size = 8, num_workers = 2})
      while true do
        for _ in loader:iter() do end
      end]]):format(package.path, package.cpath))
    local text = run("timeout --foreground -s INT -k 10 1 lua5.4 " .. script)
    assert.matches("interrupted!", text)
  end)
end)

describe("Data sets of Lua code:", function()
  local Squares = data.Dataset:extend "Squares"
  function Squares:init(n) self.n = n end
  function Squares:len() return self.n end
  function Squares:get(i) return dm.tensor{i * 1.0, i * i * 1.0}, i end -- luacheck: ignore 212

  it("are collated: tensors stacked, numbers as a tensor", function()
    local out = {}
    for _, x, y in data.DataLoader(Squares(3), {batch_size = 2}):iter() do
      out[#out + 1] = {x:totable(), y:totable(), y.dtype}
    end
    assert.same({{{{1.0, 1.0}, {2.0, 4.0}}, {1, 2}, "int64"}, {{{3.0, 9.0}}, {3}, "int64"}}, out)
  end)

  it("may be plain tables, give tables, strings and booleans", function()
    local plain = {
      len = function() return 2 end,
      get = function(_, i) return {x = dm.ones(2) * i, name = "s" .. i, even = i % 2 == 0} end,
    }
    for _, batch in data.DataLoader(plain, {batch_size = 2}):iter() do
      assert.same({{1.0, 1.0}, {2.0, 2.0}}, batch.x:totable())
      assert.same({"s1", "s2"}, batch.name)
      assert.same({false, true}, batch.even:totable())
    end
  end)

  -- PyTorch: each element in list of batch should be of equal size.
  it("are refused where one has more values than the first, which would be lost", function()
    local collate = data.default_collate
    assert.error_matches(function() collate{{1, 2}, {1, 2, 3}} end,
      "there are 2 values in one sample and 3 in another")
    assert.error_matches(function() collate{{1, {4, 5}}, {1, {4, 5, 6}}} end,
      "field 2 has 2 values in one sample and 3 in another")
    assert.error_matches(function() collate{{{x = {4, 5}}}, {{x = {4}}}} end,
      "field x has 2 values in one sample and 1 in another")
    local ragged = {len = function() return 2 end, get = function(_, i) return i, {{1, i}, i} end}
    for _, x, y in data.DataLoader(ragged, {batch_size = 2}):iter() do
      assert.same({1, 2}, x:totable())
      assert.same({1, 2}, y[1][2]:totable())
    end
  end)

  it("use collate_fn when given", function()
    local sizes = {}
    local loader = data.DataLoader(Squares(5), {batch_size = 2, collate_fn = function(samples)
      return #samples
    end})
    for _, n in loader:iter() do sizes[#sizes + 1] = n end
    assert.same({2, 2, 1}, sizes)
    local bad = data.DataLoader(Squares(5), {collate_fn = function() return false end})
    assert.has_error(function() order_of(bad) end)
  end)

  it("shuffle, drop and resume as native ones do", function()
    local native, own = {}, {}
    local opts = {batch_size = 4, shuffle = true, seed = 8, drop_last = true}
    for i, _, y in data.DataLoader(pairs_of(10), opts):iter() do native[i] = y:totable() end
    for i, _, y in data.DataLoader(Squares(10), opts):iter() do own[i] = y:totable() end
    assert.same(native, own)
  end)

  it("a class with its own get is not bypassed", function()
    local Doubled = data.TensorDataset:extend "Doubled"
    function Doubled:get(i) return self.tensors[1][i] * 2 end
    for _, x in data.DataLoader(Doubled(dm.ones(2, 1)), {batch_size = 2}):iter() do
      assert.same({{2.0}, {2.0}}, x:totable())
    end
  end)
end)

-- ---- IDX ----

local function idx(code, dims, body)
  return ("\0\0"):rep(1) .. string.char(code, #dims)
    .. string.pack((">I4"):rep(#dims), table.unpack(dims)) .. body
end
local function digits(n, first)
  local pixels = {}
  for i = 1, n * 4 do pixels[i] = string.char((first + i) % 256) end
  return idx(8, {n, 2, 2}, table.concat(pixels))
end

describe("read_idx:", function()
  it("reads plain and gzip files alike", function()
    local plain = write("a.idx", digits(3, 0))
    assert.same({{{1, 2}, {3, 4}}, {{5, 6}, {7, 8}}, {{9, 10}, {11, 12}}},
      dm.read_idx(plain):totable())
    os.execute(("gzip -kf %s"):format(plain))
    assert.is_true(dm.equal(dm.read_idx(plain), dm.read_idx(plain .. ".gz")))
  end)

  it("reads each element type", function()
    assert.same({1.5, -2.0}, dm.read_idx(write("f", idx(0x0d, {2}, string.pack(">ff", 1.5, -2))))
      :totable())
    assert.same({-2, 300}, dm.read_idx(write("h", idx(0x0b, {2}, string.pack(">i2i2", -2, 300))))
      :totable())
  end)

  it("answers nil and a message for what is damaged", function()
    local whole = digits(200, 7)
    local zip = path "b.idx"
    write("b.idx", whole)
    os.execute(("gzip -kf %s"):format(zip))
    local f = assert(io.open(zip .. ".gz", "rb"))
    local packed = f:read "a"
    f:close()
    local bad = {
      {"", "cut short"}, {whole:sub(1, 3), "cut short"}, {whole:sub(1, 9), "cut short"},
      {whole:sub(1, -2), "cut short"}, {whole .. "x", "more than"}, {"\1" .. whole, "no IDX"},
      {idx(8, {0x7fffffff, 0x7fffffff, 0x7fffffff}, "x"), "overflow"},
      {idx(8, {0x7fffffff, 2}, "x"), "cut short"},
      {packed:sub(1, 40), "cut short"}, {packed:sub(1, -5), "cut short"},
      {packed:sub(1, 60) .. "\255\255\255" .. packed:sub(64), "damaged"},
      {packed:sub(1, -5) .. "\9\9\9\9", "damaged"},
    }
    for i, case in ipairs(bad) do
      local tensor, message = dm.read_idx(write("bad", case[1]))
      assert.is_nil(tensor, i)
      assert.matches(case[2], message, 1, true)
    end
    local tensor, message = dm.read_idx(path "nowhere")
    assert.is_nil(tensor)
    assert.matches("No such file", message)
  end)
end)

describe("FashionMNIST and MNIST:", function()
  local function four_files(n, labels)
    write("train-images-idx3-ubyte", digits(n, 0))
    write("train-labels-idx1-ubyte", idx(8, {#labels}, string.char(table.unpack(labels))))
  end

  it("normalise images and count labels from 1", function()
    four_files(3, {0, 9, 4})
    local set = assert(datasets.MNIST(path()))
    assert.equal(3, #set)
    assert.same({"uint8", "int64"}, {set.images.dtype, set.labels.dtype})
    assert.same({1, 10, 5}, set.labels:totable())
    for _, x, y in data.DataLoader(set, {batch_size = 3}):iter() do
      assert.same({3, 1, 2, 2}, {table.unpack(x.shape)})
      assert.equal("float32", x.dtype)
      assert.near((7 / 255 - 0.1307) / 0.3081, x[{2, 1, 2, 1}]:item(), 1e-6)
      for i = 1, 3 do
        local one, label = set:get(i)
        assert.is_true(dm.equal(one, x[i]))
        assert.equal(label:item(), y[i]:item())
      end
    end
    local raw = assert(datasets.FashionMNIST(path(), {normalize = false}))
    assert.near(1 / 255, raw:get(1)[{1, 1, 1}]:item(), 1e-7)
    assert.equal("Ankle boot", raw.classes[10])
  end)

  it("are augmented alike for any number of workers", function()
    local labels = {}
    for i = 1, 64 do labels[i] = i % 10 end
    four_files(64, labels)
    local set = assert(datasets.MNIST(path(), {augment = {padding = 1, flip = 0.5}}))
    local sums = {}
    for _, workers in ipairs{0, 1, 3} do
      local loader = data.DataLoader(set, {batch_size = 16, num_workers = workers, seed = 4})
      local all = {}
      for _ = 1, 2 do
        for _, x in loader:iter() do all[#all + 1] = x:totable() end
      end
      sums[#sums + 1] = all
    end
    assert.same(sums[1], sums[2])
    assert.same(sums[1], sums[3])
    assert.are_not.same(sums[1][1], sums[1][5])
  end)

  it("say how to get what is missing, and what does not fit", function()
    local set, message = datasets.FashionMNIST(path "nowhere")
    assert.is_nil(set)
    assert.matches("apt-get install dataset-fashion-mnist", message, 1, true)
    assert.matches("four IDX files", message)
    four_files(3, {0, 9})
    set, message = datasets.MNIST(path())
    assert.is_nil(set)
    assert.matches("3 images and 2 labels", message)
    four_files(1, {10})
    set, message = datasets.MNIST(path())
    assert.is_nil(set)
    assert.matches("a label of 10", message)
    write("train-labels-idx1-ubyte", "xx")
    set, message = datasets.MNIST(path())
    assert.is_nil(set)
    assert.matches("cut short", message)
  end)

  it("refuse unknown options", function()
    local ok, message = pcall(datasets.FashionMNIST, path(), {trian = false})
    assert.is_false(ok)
    assert.matches("did you mean 'train'", message)
  end)

  it("read Debian's Fashion-MNIST", function()
    local set = datasets.FashionMNIST(nil, {train = false})
    if not set then return pending "dataset-fashion-mnist is not installed" end
    assert.equal(10000, #set)
    assert.same({1, 10}, {set.labels:amin():item(), set.labels:amax():item()})
    local loader = data.DataLoader(set, {batch_size = 10000, num_workers = 1})
    for _, x in loader:iter() do
      assert.near(0, x:mean():item(), 0.02)
      assert.near(1, x:std():item(), 0.02)
    end
  end)
end)

-- ---- progress ----

describe("dm.progress:", function()
  -- The text that it writes over a loop, to a file that is no terminal.
  local function written(loop)
    local file = assert(io.open(path "log", "w+"))
    local ok, message = pcall(loop, file)
    file:seek "set"
    local text = file:read "a"
    file:close()
    return text, ok, message
  end

  it("hands on what the loader gives and ends with a line", function()
    local loader = data.DataLoader(pairs_of(8), {batch_size = 2})
    local sum = 0
    local text = written(function(file)
      for i, x, y in dm.progress(loader, {desc = "epoch 1", file = file}) do
        assert.equal(2, #x)
        sum = sum + y:sum():item() + i * 0
        dm.progress.set{loss = 0.25, samples = #x}
      end
    end)
    assert.equal(36, sum)
    assert.matches("^epoch 1  100%%  4/4  %S+ samples/s  0:00  loss 0.2500\n$", text)
  end)

  it("writes NaN of either sign as nan", function()
    for _, nan in ipairs{0 / 0, -(0 / 0)} do
      local text = written(function(file)
        for _ in dm.progress(1, {file = file}) do dm.progress.set{loss = nan} end
      end)
      assert.matches("  loss nan\n$", text)
    end
  end)

  it("runs over counts, lists and iterators", function()
    written(function(file)
      local seen = {}
      for i in dm.progress(3, {file = file}) do seen[#seen + 1] = i end
      for _, v in dm.progress({"a", "b"}, {file = file}) do seen[#seen + 1] = v end
      for k in dm.progress(("x y"):gmatch "%a", {file = file}) do seen[#seen + 1] = k end
      assert.same({1, 2, 3, "a", "b", "x", "y"}, seen)
    end)
  end)

  it("closes the loader when the loop is left, and tells how far it came", function()
    local loader = data.DataLoader(pairs_of(100), {batch_size = 2, num_workers = 2})
    local before = threads()
    local text, ok, message = written(function(file)
      for i in dm.progress(loader, {file = file}) do
        if i == 3 then error "enough" end
      end
    end)
    assert.is_false(ok)
    assert.matches("enough", message)
    assert.matches("4%%  2/50", text)
    assert_threads(before)
    dm.progress.set{loss = 1} -- no bar runs: nothing happens
  end)

  it("set speaks to the innermost bar", function()
    local text = written(function(file)
      for _ in dm.progress(1, {desc = "outer", file = file}) do
        for _ in dm.progress(1, {desc = "inner", file = file}) do dm.progress.set{a = 1} end
        dm.progress.set{b = dm.tensor(0.5)}
      end
    end)
    assert.matches("inner.-a 1\n.*outer.-b 0.5000\n", text)
  end)

  it("refuses what it cannot run over", function()
    assert.has_error(function() dm.progress(nil) end)
    assert.has_error(function() dm.progress(3, {descr = "x"}) end)
    assert.has_error(function() dm.progress.set(3) end)
  end)

  it("redraws one line on a terminal", function()
    if not os.execute "script -qec true /dev/null >/dev/null 2>&1" then
      return pending "no script(1), or no pseudo-terminals here"
    end
    local file = write("bar.lua", ([[
      package.path, package.cpath = %q, %q
      local dm = require "demilune"
      for _ in dm.progress(4, {desc = "bar"}) do
        local t = dm.now()
        while dm.now() - t < 0.12 do end
      end]]):format(package.path, package.cpath))
    local text = run(("LC_ALL=C script -qec 'lua5.4 %s' /dev/null"):format(file))
    assert.matches("\rbar   25%%  #####%.%.%.%.%.%.%.%.%.%.%.%.%.%.%.  1/4", text)
    assert.equal(1, select(2, text:gsub("\n", "")))
    text = run(("LC_ALL=C script -qec 'stty cols 20; lua5.4 %s' /dev/null"):format(file))
    assert.matches("\rbar   25%%  1/4  ", text) -- without the bar, and cut
    for line in text:gmatch "\r([^\r\27]*)\27" do assert.is_true(#line < 20, line) end
  end)
end)
