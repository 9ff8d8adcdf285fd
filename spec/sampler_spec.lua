-- Samplers and batch samplers give their order or their probabilities (within five standard
-- deviations), and combined data sets give the samples of their parts.

local dm = require "demilune"
local data = dm.data

-- n samples: i
local function count_to(n) return data.TensorDataset(dm.arange(n, {device = "cpu"})) end

local function list(order) return dm.is_tensor(order) and order:totable() or order end

-- The batches of an epoch, as lists.
local function batches(loader)
  local all = {}
  for _, x in loader:iter() do all[#all + 1] = x:totable() end
  return all
end

describe("RandomSampler", function()
  it("draws with replacement as often as asked", function()
    local s = data.RandomSampler(count_to(4), {replacement = true, num_samples = 4000, seed = 3})
    assert.equal(4000, #s)
    local seen = {0, 0, 0, 0}
    for _, i in ipairs(list(s:order(1))) do seen[i] = seen[i] + 1 end
    for k = 1, 4 do assert.is_true(math.abs(seen[k] - 1000) < 137, seen[k]) end -- 5 deviations
    assert.same(list(s:order(1)), list(s:order(1)))
    assert.not_same(list(s:order(1)), list(s:order(2)))
  end)

  it("goes through the set again where num_samples takes it, each time anew", function()
    local set = count_to(20)
    local all = list(data.RandomSampler(set, {num_samples = 45, seed = 3}):order(1))
    assert.equal(45, #all)
    local seen = {}
    for i, v in ipairs(all) do seen[v] = (seen[v] or 0) + (i <= 40 and 1 or 0) end
    for i = 1, 20 do assert.equal(2, seen[i]) end
    assert.not_same({table.unpack(all, 1, 20)}, {table.unpack(all, 21, 40)})
    local plain = list(data.RandomSampler(set, {seed = 3}):order(1))
    assert.same(plain, {table.unpack(all, 1, 20)})
    local few = data.RandomSampler(set, {num_samples = 5, seed = 3})
    assert.same({table.unpack(plain, 1, 5)}, list(few:order(1)))
    assert.equal(2, #data.DataLoader(set, {sampler = few, batch_size = 4}))
  end)

  it("refuses what makes no order", function()
    local none = count_to(0)
    assert.equal(0, #data.RandomSampler(none):order(1))
    assert.refuses("num_samples is 0", function()
      data.RandomSampler(count_to(3), {num_samples = 0})
    end)
    assert.refuses("replacement is 'yes'", function()
      data.RandomSampler(count_to(3), {replacement = "yes"})
    end)
    assert.refuses("4 samples of a data set without any", function()
      data.RandomSampler(none, {replacement = true, num_samples = 4})
    end)
    assert.refuses("sampler_spec.lua:%d+: RandomSampler: unknown option 'num_sample'", function()
      data.RandomSampler(none, {num_sample = 4})
    end)
  end)
end)

describe("WeightedRandomSampler", function()
  it("draws as often as the weights say, and never at weight 0", function()
    local s = data.WeightedRandomSampler({1, 0, 3}, 8000, {seed = 1})
    local seen = {0, 0, 0}
    for _, i in ipairs(list(s:order(1))) do seen[i] = seen[i] + 1 end
    assert.equal(0, seen[2])
    assert.is_true(math.abs(seen[1] - 2000) < 194, seen[1]) -- 5 deviations
    assert.same(list(s:order(2)), list(s:order(2)))
    assert.not_same(list(s:order(1)), list(s:order(2)))
    local other = data.WeightedRandomSampler(dm.tensor{1, 0, 3}, 8000, {seed = 1})
    assert.same(list(s:order(1)), list(other:order(1)))
  end)

  it("without replacement takes each once", function()
    local s = data.WeightedRandomSampler({1, 0, 3, 2}, 3, {replacement = false, seed = 1})
    local all = list(s:order(1))
    table.sort(all)
    assert.same({1, 3, 4}, all)
    local firsts = 0
    for epoch = 1, 600 do firsts = firsts + (s:order(epoch)[1]:item() == 3 and 1 or 0) end
    assert.is_true(math.abs(firsts - 300) < 62, firsts)
  end)

  it("orders a loader, whose generator decides", function()
    local g = dm.Generator():manual_seed(4)
    local s = data.WeightedRandomSampler({0, 0, 1, 0}, 5, {generator = g})
    assert.same({{3, 3}, {3, 3}, {3}},
      batches(data.DataLoader(count_to(4), {sampler = s, batch_size = 2})))
    assert.refuses("index 3|sample 3, there are 2", function()
      local ok, why = pcall(batches, data.DataLoader(count_to(2), {sampler = s}))
      error(ok and "" or why:gsub("sample 3", "index 3|sample 3"), 0)
    end)
  end)

  it("refuses weights that are none", function()
    for pattern, weights in pairs{["finite weights of 0 or more"] = {1, -1}, ["above 0"] = {0, 0},
      ["one dim"] = {{1, 2}}, ["wanted finite"] = {1, 0 / 0}, ["wanted a tensor or a list"] = "x",
      ["wanted finite weights"] = {1, math.huge}} do
      assert.refuses(pattern, function() data.WeightedRandomSampler(weights, 2) end)
    end
    assert.refuses("num_samples is missing", function() data.WeightedRandomSampler{1} end)
    assert.refuses("num_samples is 1.5", function() data.WeightedRandomSampler({1}, 1.5) end)
    assert.refuses("2 samples without replacement, 1 weights are above 0", function()
      data.WeightedRandomSampler({1, 0}, 2, {replacement = false})
    end)
  end)
end)

describe("DistributedSampler", function()
  -- torch.utils.data.DistributedSampler(shuffle=False), and 1
  it("deals the samples out, some twice, or drops some", function()
    local function shares(n, opts)
      local all = {}
      for rank = 0, opts.num_replicas - 1 do
        opts.rank, opts.shuffle = rank, false
        local s = data.DistributedSampler(count_to(n), opts)
        all[rank + 1] = list(s:order(1))
        assert.equal(#all[rank + 1], #s)
      end
      return all
    end
    assert.same({{1, 4, 7}, {2, 5, 1}, {3, 6, 2}}, shares(7, {num_replicas = 3}))
    assert.same({{1, 4}, {2, 5}, {3, 6}}, shares(7, {num_replicas = 3, drop_last = true}))
    assert.same({{1}, {2}, {1}, {2}, {1}}, shares(2, {num_replicas = 5}))
    assert.same({{}, {}, {}}, shares(2, {num_replicas = 3, drop_last = true}))
  end)

  it("shuffles alike everywhere, anew each epoch, or as set_epoch says", function()
    local set, seen, parts = count_to(9), {}, {}
    for rank = 0, 2 do
      parts[rank] = data.DistributedSampler(set, {num_replicas = 3, rank = rank, seed = 5})
      for _, i in ipairs(list(parts[rank]:order(1))) do seen[#seen + 1] = i end
    end
    table.sort(seen)
    assert.same({1, 2, 3, 4, 5, 6, 7, 8, 9}, seen)
    local s = parts[0]
    local fourth = list(s:order(4))
    assert.not_same(list(s:order(1)), fourth)
    s:set_epoch(4)
    assert.same(fourth, list(s:order(1)))
    local loader = data.DataLoader(set, {sampler = s, batch_size = 3})
    assert.same({fourth}, batches(loader))
    assert.same({fourth}, batches(loader))
  end)

  it("refuses shares that are none", function()
    local set = count_to(3)
    assert.equal(3, #data.DistributedSampler(set)) -- alone
    assert.refuses("rank is 2, wanted 0 to 1", function()
      data.DistributedSampler(set, {num_replicas = 2, rank = 2})
    end)
    assert.refuses("num_replicas is 0", function()
      data.DistributedSampler(set, {num_replicas = 0})
    end)
    assert.refuses("shuffle is 1", function() data.DistributedSampler(set, {shuffle = 1}) end)
    assert.refuses("epoch is x", function() data.DistributedSampler(set):set_epoch "x" end)
    assert.refuses("wanted a data set", function() data.DistributedSampler(3) end)
  end)
end)

describe("Batch samplers", function()
  local ByLength = data.Sampler:extend "ByLength"
  function ByLength:init(lists) self.lists = lists end
  function ByLength:len() return #self.lists end
  function ByLength:batches() return self.lists end

  it("cut what a sampler gives", function()
    local s = data.BatchSampler(data.SequentialSampler(count_to(5)), 2)
    local cut = {}
    for k, batch in ipairs(s:batches(1)) do cut[k] = batch:totable() end
    assert.same({{1, 2}, {3, 4}, {5}}, cut)
    assert.equal(3, #s)
    local even = data.BatchSampler(data.SequentialSampler(count_to(5)), 2, true)
    assert.same({2, 2}, {#even, #even:batches(1)})
  end)

  it("decide a loader's batches, of threads and of Lua alike", function()
    local lists = {{3, 1}, {2}, dm.tensor({4, 5, 6}, {dtype = "int64", device = "cpu"}), {1}}
    local want = {{3, 1}, {2}, {4, 5, 6}, {1}}
    local own = {len = function() return 6 end, get = function(_, i) return i end}
    for _, workers in ipairs{0, 1, 3} do
      local loader = data.DataLoader(count_to(6),
        {batch_sampler = ByLength(lists), num_workers = workers})
      assert.equal(4, #loader)
      assert.same(want, batches(loader))
      loader:load_state_dict{seed = 1, epoch = 1, position = 2}
      assert.same({want[3], want[4]}, batches(loader))
    end
    local loader = data.DataLoader(own, {batch_sampler = ByLength(lists)})
    assert.same(want, batches(loader))
    loader:load_state_dict{seed = 1, epoch = 1, position = 3}
    assert.same({{1}}, batches(loader))
    assert.matches("6 samples, 4 batches, 0 workers", tostring(loader))
    assert.same({}, batches(data.DataLoader(own, {batch_sampler = ByLength{}})))
    assert.same({}, batches(data.DataLoader(count_to(6), {batch_sampler = ByLength{}})))
  end)

  it("stand alone, and give whole batches of positions", function()
    local set = count_to(3)
    for _, other in ipairs{{batch_size = 2}, {shuffle = true}, {drop_last = true},
      {sampler = data.SequentialSampler(set)}} do
      other.batch_sampler = ByLength{{1}}
      assert.refuses("batch_sampler and %a", function() data.DataLoader(set, other) end)
    end
    assert.refuses("wanted batches%(epoch%)", function()
      data.DataLoader(set, {batch_sampler = data.SequentialSampler(set)})
    end)
    assert.refuses("batch 2 of the batch_sampler is empty", function()
      batches(data.DataLoader(set, {batch_sampler = ByLength{{1}, {}}}))
    end)
    assert.refuses("batch 1: sample 4, there are 3", function()
      batches(data.DataLoader(set, {batch_sampler = ByLength{{4}}}))
    end)
    assert.refuses("batch_size is 0", function()
      data.BatchSampler(data.SequentialSampler(set), 0)
    end)
    assert.refuses("wanted a sampler", function() data.BatchSampler(set, 2) end)
    assert.refuses("drop_last is 1", function()
      data.BatchSampler(data.SequentialSampler(set), 1, 1)
    end)
  end)
end)

describe("ConcatDataset", function()
  it("is one set after the other", function()
    local a, none = count_to(2), count_to(0)
    local b = data.TensorDataset(dm.tensor({30, 40, 50}, {dtype = "int64", device = "cpu"}))
    local set = data.ConcatDataset{a, none, b}
    assert.equal(5, #set)
    assert.same({{1, 2, 30, 40}, {50}}, batches(data.DataLoader(set, {batch_size = 4})))
    assert.refuses("sample 6, there are 5", function() set:get(6) end)
    assert.refuses("ConcatDataset: 2: wanted a data set", function()
      data.ConcatDataset{a, dm.ones(2)}
    end)
    assert.refuses("got none", function() data.ConcatDataset{} end)
    assert.refuses("datasets is missing", function() data.ConcatDataset() end)
  end)
end)

describe("StackDataset", function()
  it("puts samples side by side, for threads too", function()
    local x, y = count_to(4), data.TensorDataset(dm.ones(4, 2, {device = "cpu"}),
      dm.arange(4, {device = "cpu"}) * 10)
    local set = data.StackDataset(x, y)
    for _, workers in ipairs{0, 2} do
      for _, a, b, c in data.DataLoader(set, {batch_size = 4, num_workers = workers}):iter() do
        assert.same({{1, 2, 3, 4}, {4, 2}, {10, 20, 30, 40}},
          {a:totable(), {table.unpack(b.shape)}, c:totable()})
      end
    end
    local half = data.Subset(x, {4, 3, 2, 1}) -- rows of its own: Lua makes these samples
    for _, a, b in data.DataLoader(data.StackDataset(half, x), {batch_size = 4}):iter() do
      assert.same({{4, 3, 2, 1}, {1, 2, 3, 4}}, {a:totable(), b:totable()})
    end
  end)

  it("names the parts of a table", function()
    local set = data.StackDataset{number = count_to(2), twice = data.Subset(count_to(4), {2, 4})}
    for _, sample in data.DataLoader(set, {batch_size = 2}):iter() do
      assert.same({1, 2}, sample.number:totable())
      assert.same({2, 4}, sample.twice:totable())
    end
  end)

  it("refuses sets that do not go together", function()
    assert.refuses("has 3 samples, another 2", function()
      data.StackDataset(count_to(2), count_to(3))
    end)
    assert.refuses("got none", function() data.StackDataset() end)
    assert.refuses("StackDataset: 2: wanted a data set", function()
      data.StackDataset(count_to(2), 7)
    end)
  end)
end)
