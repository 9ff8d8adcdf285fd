-- Workers of the loader that run data sets written in Lua, in Lua states of their own threads.

local dm = require "demilune"
local data, transforms = dm.data, dm.transforms
local folder = require "spec.folder"
local scope
setup(function()
  folder.make()
  scope = dm.device "cpu" -- where data sets keep their tensors
end)
teardown(function()
  folder.remove()
  scope:close()
end)

local factor, calls = 3, 0
local function scaled(v) return v * factor end
local function recursive(n) return n == 0 and 0 or 1 + recursive(n - 1) end -- luacheck: ignore

local Squares = data.Dataset:extend "Squares"
function Squares:init(n)
  self.n, self.x = n, dm.arange(1, n, {dtype = "float32"})
end
function Squares:len() return self.n end
function Squares:get(i)
  calls = calls + 1
  return scaled(self.x[i]) + dm.rand(2), i * i, ("sample %d"):format(i), {half = i / 2}
end

-- The values of an epoch, tensors as lists.
local function epoch_of(loader)
  local all = {}
  for i, x, y, names, fields in loader:iter() do
    all[i] = {x:totable(), y and y:totable(), names, fields and fields.half:totable()}
  end
  return all
end

local function loader_of(set, workers, more)
  local opts = {batch_size = 3, shuffle = true, seed = 4, num_workers = workers}
  for key, v in pairs(more or {}) do opts[key] = v end
  return data.DataLoader(set, opts)
end

-- Runs the loop and gives its error.
local function failure(set, more)
  local ok, why = pcall(epoch_of, loader_of(set, 2, more))
  assert.is_false(ok)
  return why
end

-- A data set of four samples whose get is f.
local function set_of(f) return {len = function() return 4 end, get = f} end

describe("a data set written in Lua, with workers", function()
  it("gives the same bits as without, in order, random draws too", function()
    local without = loader_of(Squares(10), 0)
    local expected = {epoch_of(without), epoch_of(without)}
    assert.are_not.same(expected[1], expected[2])
    for _, workers in ipairs{1, 2, 5} do
      local loader = loader_of(Squares(10), workers)
      assert.same(expected, {epoch_of(loader), epoch_of(loader)})
    end
  end)

  it("draws nothing from the program's generator", function()
    for _, workers in ipairs{0, 2} do
      dm.manual_seed(3)
      local expected = dm.rand(1):item()
      dm.manual_seed(3)
      epoch_of(loader_of(Squares(5), workers))
      assert.equal(expected, dm.rand(1):item())
    end
  end)

  it("shares tensors and copies the rest", function()
    calls = 0
    local x = dm.zeros(4)
    local set = set_of(function(_, i)
      calls = calls + 1
      x[i] = i
      return i
    end)
    for _ in data.DataLoader(set, {num_workers = 2}):iter() do end
    assert.equal(0, calls)
    assert.same({1.0, 2.0, 3.0, 4.0}, x:totable())
  end)

  it("takes samplers, drop_last, a collate_fn and a position to resume at", function()
    local opts = {drop_last = true, collate_fn = function(samples) return #samples, factor end}
    for _, n, f in loader_of(Squares(10), 2, opts):iter() do
      assert.equal(3, n)
      assert.equal(3, f)
    end
    local batches = {len = function() return 2 end, batches = function() return {{4, 1}, {2}} end}
    local seen = {}
    for i, _, y in data.DataLoader(Squares(4), {batch_sampler = batches, num_workers = 2}):iter() do
      seen[i] = y:totable()
    end
    assert.same({{16, 1}, {4}}, seen)
    local all = epoch_of(loader_of(Squares(10), 2))
    local loader, state = loader_of(Squares(10), 2), nil
    for i in loader:iter() do
      state = loader:state_dict()
      if i == 2 then break end
    end
    local rest = loader_of(Squares(10), 3)
    rest:load_state_dict(state)
    local seen_rest = {}
    for i, x in rest:iter() do seen_rest[i] = x:totable() end
    assert.same({[3] = all[3][1], [4] = all[4][1]}, seen_rest)
  end)

  it("sends functions with their locals, those that call themselves, and globals", function()
    _G.workers_spec_global = function(i) return recursive(i) + factor end
    local count = 0
    local function up() count = count + 1 return count end
    local function now() return count end
    local set = set_of(function(_, i)
      up()
      return workers_spec_global(i), now() > 0, math.floor(2.5), transforms.is_callable(up) -- luacheck: ignore
    end)
    for i, v, counted, two, callable in data.DataLoader(set, {num_workers = 1}):iter() do
      assert.equal(i + 3, v:item())
      assert.is_true(counted:item() and callable:item())
      assert.equal(2, two:item())
    end
    _G.workers_spec_global = nil
  end)

  it("knows transforms, and classes of the library", function()
    local images = (dm.rand(8, 3, 9, 9) * 255):to "uint8"
    local set = set_of(function(self, i) return self.transform(self.inner:get(i)), i end)
    set.inner = data.TensorDataset(images)
    set.transform = transforms.Compose{transforms.RandomCrop(6), transforms.ToTensor(),
      transforms.RandomErasing{p = 1}, function(x) return x * factor end}
    set.transform(images[1]) -- which keeps its plan
    local expected = epoch_of(loader_of(set, 0))
    assert.same(expected, epoch_of(loader_of(set, 3)))
    local subset = data.Subset(set, {4, 2})
    assert.same(epoch_of(loader_of(subset, 0)), epoch_of(loader_of(subset, 2)))
  end)

  it("runs a stream in one worker", function()
    local Lines = data.IterableDataset:extend "Lines"
    function Lines:iter(epoch) -- luacheck: ignore 212
      local i = 0
      return function()
        i = i + 1
        if i <= 7 then return dm.rand(1), i + 10 * epoch end
      end
    end
    local function seen(workers)
      local loader = data.DataLoader(Lines(), {batch_size = 3, num_workers = workers, seed = 1})
      local all = {}
      for _ = 1, 2 do
        for _, x, y in loader:iter() do all[#all + 1] = {x:totable(), y:totable()} end
      end
      return all
    end
    assert.equal(6, #seen(0))
    assert.same(seen(0), seen(3))
  end)

  it("tells which sample failed, and goes on after it", function()
    local set = set_of(function(_, i)
      if i == 3 then error "a bad record" end
      return i
    end)
    local loader = data.DataLoader(set, {num_workers = 2})
    local step, seen = loader:iter(), {}
    for _ = 1, 4 do
      local ok, _, x = pcall(step)
      seen[#seen + 1] = ok and x:item() or "failed"
    end
    assert.same({1, 2, "failed", 4}, seen)
    assert.is_nil(step())
    assert.matches("DataLoader: sample 3: .*workers_spec.lua:%d+: a bad record", failure(set))
  end)

  it("says what cannot go to a worker, and where it is", function()
    local file <close> = assert(io.open(folder.path "x", "w"))
    local set = set_of(function() return file:read(1) end)
    local why = failure(set)
    assert.matches("workers_spec.lua:%d+: DataLoader: num_workers: dataset%.get%.file %(a local "
      .. "of .-%) is a FILE%*", why)
    assert.matches("hint: open it in get%(i%)", why)
    set = set_of(function() return 1 end)
    set.routine = coroutine.create(print)
    assert.matches("dataset%.routine is a thread", failure(set))
    set.routine = dm.ones(2, {requires_grad = true}) * 2
    assert.matches("dataset%.routine is a .*history of gradients; hint: x:detach", failure(set))
    set.routine = nil
    _G.workers_spec_file = file
    function set.get() return workers_spec_file:read(1) end -- luacheck: ignore 113
    assert.matches("the global workers_spec_file is a FILE%*, which did not go to the worker",
      failure(set))
    _G.workers_spec_file = nil
    function set.get() return workers_spec_nothing() end -- luacheck: ignore 113
    assert.matches("global 'workers_spec_nothing'", failure(set))
    function set.get(_, i) return i, print end
    set.collate = false
    assert.matches("field 2 of a sample is a function", failure(set))
    assert.matches("a batch is a function, which cannot come from a worker", failure(set,
      {collate_fn = function() return print end}))
  end)

  it("reports a worker that cannot begin", function()
    local path = package.path
    package.path = "/nowhere/?.lua"
    local ok, why = pcall(epoch_of, loader_of(Squares(4), 1))
    package.path = path
    assert.is_false(ok)
    assert.matches("DataLoader: a worker failed: .*module 'demilune.data.worker' not found", why)
  end)

  it("ends its workers when the loop is left", function()
    local loader = loader_of(Squares(100), 3)
    for i in loader:iter() do
      if i == 2 then break end
    end
    loader:finish()
    assert.is_nil(loader.run)
    assert.equal(34, #epoch_of(loader))
  end)

  it("gives batches to a coroutine, and refuses what is no worker", function()
    local seen = coroutine.wrap(function() return #epoch_of(loader_of(Squares(10), 2)) end)()
    assert.equal(4, seen)
    local worker = require "demilune.core".worker_new("demilune.data.worker", package.path,
      package.cpath)
    worker:stop()
    worker:stop()
    assert.has_error(function() worker:send("", {}) end)
    assert.has_error(function() worker.send(io.stdout, "", {}) end)
  end)
end)
