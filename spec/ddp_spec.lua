-- nn.parallel.DistributedDataParallel: in a world of one rank in this process, and on several ranks
-- by mpirun, where it is installed.

local dm = require "demilune"
local launch = require "spec.distributed.launch"
local run_checks = require "spec.distributed.parallel"
local nn, optim, data, dist = dm.nn, dm.optim, dm.data, dm.distributed
local DDP = nn.parallel.DistributedDataParallel

local with_mpirun = launch.tests(it, pending)

local NAME = "DistributedDataParallel: "

describe("DistributedDataParallel in a world of one rank", function()
  before_each(function() dist.init_process_group() end)
  after_each(function()
    if dist.is_initialized() then dist.destroy_process_group() end
  end)

  local function net()
    dm.manual_seed(2)
    return nn.Sequential{nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3),
      nn.Flatten(), nn.Linear(4 * 36, 10)}
  end

  -- Trains for some steps in mixed precision -> the losses, and the parameters.
  local function trained(model)
    dm.manual_seed(9)
    local optimizer = optim.AdamW(model:parameters(), {lr = 0.01})
    local scaler = dm.amp.GradScaler{device = "cpu", init_scale = 256}
    local losses = {}
    for step = 1, 6 do
      local x, y = dm.randn(8, 1, 8, 8), dm.randint(10, {8})
      local loss = dm.amp.autocast({device_type = "cpu", dtype = "float16"}, function()
        return nn.functional.cross_entropy(model(x), y)
      end)
      dm.amp.step{loss = loss, optimizer = optimizer, scaler = scaler, max_norm = 1,
        accumulate = 2}
      losses[step] = loss:item()
    end
    return losses, nn.utils.parameters_to_vector(model:parameters())
  end

  it("changes no bit", function()
    local losses, parameters = trained(net())
    local own_losses, own_parameters = trained(DDP(net()))
    assert.same(losses, own_losses)
    assert.is_true(parameters:equal(own_parameters))
  end)

  it("does on one rank what it does on several", function()
    assert.is_true(run_checks() > 1000)
  end)

  it("sends nothing after construction", function()
    local ddp = DDP(net())
    local before = dist.stats().calls
    trained(ddp)
    assert.equal(before, dist.stats().calls)
  end)

  it("keeps gradients in buckets, which zero_grad leaves", function()
    local ddp = DDP(nn.Linear(3, 2), {check_every = 0})
    ddp:register_comm_hook "bfloat16" -- else one rank needs no buckets
    local x = dm.ones(1, 3)
    ddp(x):sum():backward() -- behind which the buckets have their order for good
    ddp:zero_grad()
    ddp(x):sum():backward()
    local weight = ddp.module.weight
    local first = weight.grad
    weight.grad:add_(1)
    assert.same({2, 2, 2}, first[1]:totable())
    ddp:zero_grad()
    assert.is_nil(weight.grad)
    ddp(x):sum():backward()
    assert.same({1, 1, 1}, first[1]:totable()) -- the same memory
    optim.SGD(ddp:parameters(), {lr = 1}):zero_grad()
    assert.is_nil(weight.grad)
    x.requires_grad = true
    local g = dm.autograd.grad(ddp(x):sum(), {weight, x})
    assert.is_nil(weight.grad)
    assert.same({1, 1, 1}, g[1]:totable())
  end)

  it("calls a parameter's hook once, before its bucket is sent", function()
    local Twice = nn.Module:extend "Twice"
    function Twice:init() self.layer, self.out = nn.Linear(3, 3), nn.Linear(3, 1) end
    function Twice:forward(x) return self.out(self.layer(self.layer(x))) end
    local grads = {}
    for i, wrap in ipairs{function(m) return m end, DDP} do
      dm.manual_seed(1)
      local m = Twice()
      local model, calls = wrap(m), 0
      if i == 2 then model:register_comm_hook "bfloat16" end
      m.layer.weight:register_hook(function(g) calls = calls + 1; return g:clamp(-0.25, 0.25) end)
      for _ = 1, 3 do -- the order of buckets is known after the first
        m.layer.weight.grad = nil
        model(dm.ones(2, 3)):sum():backward()
      end
      assert.equal(3, calls)
      grads[i] = m.layer.weight.grad
    end
    assert.equal(0.25, grads[1]:abs():max():item())
    assert.is_true(grads[1]:allclose(grads[2], {rtol = 1e-2}))
  end)

  it("has PyTorch's names in its state, and passes modes on", function()
    local ddp = DDP(nn.Sequential{nn.Linear(2, 2), nn.BatchNorm1d(2)})
    local names = {}
    for name in pairs(ddp:state_dict()) do names[#names + 1] = name end
    assert.same({"module.0.weight", "module.0.bias", "module.1.weight", "module.1.bias",
      "module.1.running_mean", "module.1.running_var", "module.1.num_batches_tracked"}, names)
    local other = DDP(nn.Sequential{nn.Linear(2, 2), nn.BatchNorm1d(2)})
    other:load_state_dict(ddp:state_dict())
    assert.is_true(other.module[1].weight:equal(ddp.module[1].weight))
    ddp:eval()
    assert.is_false(ddp.module[2].training)
    assert.matches("DistributedDataParallel {\n +module Sequential", tostring(ddp))
  end)

  it("lets go of the parameters when nobody holds it", function()
    local model = nn.Linear(2, 1)
    do
      local ddp = DDP(model)
      ddp:register_comm_hook "bfloat16"
      ddp(dm.ones(1, 2)):sum():backward()
    end
    collectgarbage()
    local g = model.weight.grad
    local other = DDP(model)
    other:register_comm_hook "bfloat16"
    other(dm.ones(1, 2)):sum():backward()
    assert.same({2, 2}, model.weight.grad[1]:totable())
    assert.same({1, 1}, g[1]:totable())
  end)

  it("outlives the process group of one rank", function()
    local ddp = DDP(nn.Linear(2, 1))
    dist.destroy_process_group()
    ddp(dm.ones(1, 2)):sum():backward()
    assert.same({1, 1}, ddp.module.weight.grad[1]:totable())
  end)

  it("computes a batch in shards", function()
    local alone = nn.Linear(3, 1)
    local ddp = DDP(alone:copy(), {shards = 6})
    local x, seen = dm.randn(12, 3), {}
    local sent = dist.stats().calls
    local loss = ddp:each_shard(function(batch, more)
      seen[#seen + 1] = {#batch.x, more}
      local square = ddp(batch.x):square():mean()
      square:backward()
      return square
    end, {x = x}, "more")
    assert.equal(sent, dist.stats().calls)
    assert.same({2, "more"}, seen[6])
    assert.equal(6, #seen)
    local whole = alone(x):square():mean()
    whole:backward()
    assert.is_true((loss - whole):abs():item() < 1e-6)
    assert.is_true((ddp.module.weight.grad - alone.weight.grad):abs():max():item() < 1e-6)
    assert.equal(2.5, ddp:each_shard(function(part) return part[1]:item() end,
      dm.arange(0, 5)):item())
    assert.is_nil(ddp:each_shard(function() end, x))
  end)

  it("leaves all as it was where a shard fails", function()
    local ddp = DDP(nn.Sequential{nn.Linear(2, 2), nn.BatchNorm1d(2)}, {shards = 2})
    local x = dm.randn(8, 2)
    ddp:each_shard(function(part) ddp(part):square():sum():backward() end, x)
    local g, mean = ddp.module[1].weight.grad:clone(), ddp.module[2].running_mean:clone()
    local rng = dm.get_rng_state()
    local ok, why = pcall(ddp.each_shard, ddp, function(part)
      ddp(part):sum():backward()
      if part[{1, 1}]:item() == x[{5, 1}]:item() then error "mine" end
    end, x)
    assert.is_false(ok)
    assert.matches("mine", why)
    assert.is_true(g:equal(ddp.module[1].weight.grad))
    assert.is_true(mean:equal(ddp.module[2].running_mean))
    assert.same(rng, dm.get_rng_state())
    ddp:each_shard(function(part) ddp(part):square():sum():backward() end, x)
  end)

  it("is made by a Trainer with shards", function()
    local set = data.TensorDataset(dm.randn(16, 2), dm.randint(2, {16}))
    local function trainer(more)
      local model = nn.Linear(2, 2)
      local o = {model = model, loss = nn.CrossEntropyLoss(), verbose = false,
        optimizer = optim.SGD(model:parameters(), {lr = 0.1})}
      for key, value in pairs(more) do o[key] = value end
      return dm.Trainer(o)
    end
    local function refuses(text, f) assert.refuses("ddp_spec.lua:%d+: Trainer" .. text, f) end
    local loader = data.DataLoader(set, {batch_size = 8, shards = 4})
    assert.equal(1, #trainer{shards = 4}:fit{train = loader})
    refuses(": shards is 2, and the DistributedDataParallel has none", function()
      trainer{shards = 2, model = DDP(nn.Linear(2, 2))}
    end)
    refuses(":fit: shards is 2, and train has 4; hint: data.DataLoader", function()
      trainer{model = DDP(nn.Linear(2, 2), {shards = 2})}:fit{train = loader}
    end)
    refuses(":fit: train has shards = 4, and the trainer none; hint", function()
      trainer{}:fit{train = loader}
    end)
    refuses(": the loss is a nil, wanted a tensor", function()
      trainer{shards = 4, loss = function() end}:fit{train = loader}
    end)
    refuses(":fit: valid has shards = 4, wanted a loader without", function()
      trainer{shards = 4}:fit{train = loader, valid = loader}
    end)
  end)

  it("refuses what has no meaning with shards", function()
    local function refuses(text, f) assert.refuses("ddp_spec.lua:%d+: " .. text, f) end
    local x = dm.ones(4, 2)
    local plain, ddp = DDP(nn.Linear(2, 1)), DDP(nn.Linear(2, 1), {shards = 2})
    for _, count in ipairs{0, -1, 1 << 21} do
      refuses(NAME .. "shards is " .. ("%d"):format(count):gsub("%p", "%%%0") .. ", wanted a whole",
        function() DDP(nn.Linear(2, 1), {shards = count}) end)
    end
    refuses("each_shard: the model has no shards; hint", function()
      plain:each_shard(print, x)
    end)
    refuses("each_shard: fn is a userdata, wanted a function", function() ddp:each_shard(x) end)
    refuses("each_shard: no tensor of the batch", function() ddp:each_shard(print) end)
    refuses("each_shard: a tensor {3, 2} for this rank's 2 shards, wanted samples as its first "
      .. "dim, as many for each; hint", function() ddp:each_shard(print, dm.ones(3, 2)) end)
    refuses("each_shard: a tensor {2} for .*, 4 as the others; hint", function()
      ddp:each_shard(print, x, dm.ones(2))
    end)
    refuses("each_shard: within another one", function()
      ddp:each_shard(function(part) ddp:each_shard(print, part) end, x)
    end)
    refuses(NAME .. "a backward pass outside of each_shard, and the model has 2 shards; hint",
      function() ddp(x):sum():backward() end)
    refuses("no_sync: the model has 2 shards; hint", function() ddp:no_sync() end)
    refuses("join: the model has 2 shards, and all ranks", function() ddp:join() end)
    refuses("register_comm_hook: the model has 2 shards, whose sums", function()
      ddp:register_comm_hook "bfloat16"
    end)
    refuses("ddp.each_shard was called with a dot", function() ddp.each_shard(print, x) end)
  end)

  it("refuses what it cannot do", function()
    local linear = nn.Linear(2, 1)
    local function refuses(text, f)
      assert.refuses("ddp_spec.lua:%d+: " .. text, f)
    end
    refuses(NAME .. "module is 3, wanted a module", function() DDP(3) end)
    refuses(NAME .. "unknown option 'bucket_cap'; did you mean 'bucket_cap_mb'", function()
      DDP(linear, {bucket_cap = 3})
    end)
    refuses(NAME .. "bucket_cap_mb is 0, wanted a number above 0", function()
      DDP(linear, {bucket_cap_mb = 0})
    end)
    refuses(NAME .. "no parameter of this ReLU requires a gradient; hint", function()
      DDP(nn.ReLU())
    end)
    local ddp = DDP(linear)
    refuses(NAME .. "parameter 'weight' belongs to another", function() DDP(linear) end)
    refuses("register_comm_hook: 'int8', wanted 'none' or a float", function()
      ddp:register_comm_hook "int8"
    end)
    refuses("join: element 1 of states is a number, wanted an optimizer", function()
      ddp:join(print, {states = {3}})
    end)
    refuses("ddp.no_sync was called with a dot; hint", function() ddp.no_sync() end)
    do
      local _ <close> = ddp:join()
      refuses("join: is open already", function() ddp:join(print) end)
    end
    dist.destroy_process_group()
    refuses(NAME .. "there is no process group any more", function()
      DDP(nn.Linear(2, 1))
    end)
  end)
end)

describe("DistributedDataParallel on several ranks", function()
  with_mpirun("trains as one process with the whole batch does", function()
    for n = 2, 3 do
      local text, code = launch.ranks(n, "parallel")
      assert.equal(n, launch.count(text, "rank %d of " .. n .. ": %d%d%d%d checks"), text)
      assert.equal(0, code)
    end
  end)

  with_mpirun("is trained by a Trainer, whose values are those of all ranks", function()
    local path = os.tmpname()
    os.remove(path)
    assert(os.execute("mkdir " .. path))
    finally(function() os.execute("rm -r " .. path) end)
    local text, code = launch.ranks(2, "trainer", path)
    assert.equal(2, launch.count(text, "rank %d of 2: a Trainer\n"), text)
    assert.equal(0, code)
  end)

  with_mpirun("trains in mixed precision by the lines of PyTorch's tutorials", function()
    local text, code = launch.ranks(2, "snippet", dm.cuda.is_available() and "cuda" or "cpu")
    assert.equal(2, launch.count(text, "rank %d of 2: mixed precision on "), text)
    assert.equal(0, code)
  end)

  with_mpirun("has the same bits on any number of ranks, in shards", function()
    local path = os.tmpname()
    os.remove(path)
    assert(os.execute("mkdir " .. path))
    finally(function() os.execute("rm -r " .. path) end)
    local function result(n, n_shard)
      local text, code = launch.ranks(n, "shards", ("%d %s"):format(n_shard, path))
      assert.equal(0, code, text)
      local files = launch.run(("cat %s/* | cksum"):format(path))
      return text:gsub("warning: [^\n]*\n", ""), files
    end
    for n_shard, ranks in pairs{[8] = {2, 4, 8}, [12] = {4}} do
      local wanted, files = result(1, n_shard)
      assert.equal(22, launch.count(wanted, "float"), wanted)
      for _, n in ipairs(ranks) do
        local text, own_files = result(n, n_shard)
        assert.equal(wanted, text)
        assert.equal(files, own_files)
      end
    end
  end)

  with_mpirun("names what shards cannot do on these ranks", function()
    local text = launch.ranks(3, "shards", 12)
    assert.equal(3, launch.told(text, "shards = 12 on 3 ranks, wanted a number of ranks that "
      .. "divides it and is a power of two; hint: 12 shards go on 1, 2, 4 ranks"), text)
    text = launch.ranks(4, "shards", 6)
    assert.is_true(launch.told(text, "shards = 6 on 4 ranks, wanted") > 0, text)
    local other = "env DEMILUNE_CPU=plain lua5.4 spec/distributed/shards.lua 8"
    text = launch.ranks(1, "shards", "8 : -n 1 " .. other)
    assert.is_true(launch.told(text, "the processor of rank 1 (plain) computes others than that of "
      .. "rank 0 (") > 0, text)
  end)

  with_mpirun("tells all ranks where one has fewer batches", function()
    local text = launch.ranks(2, "parallel", "'too few batches'")
    assert.equal(2, launch.told(text, "told"), text)
  end)
end)
