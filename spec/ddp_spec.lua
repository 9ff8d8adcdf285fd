-- nn.parallel.DistributedDataParallel: in a world of one rank in this process, and on several ranks
-- by mpirun, where it is installed.

local dm = require "demilune"
local launch = require "spec.distributed.launch"
local run_checks = require "spec.distributed.parallel"
local nn, optim, dist = dm.nn, dm.optim, dm.distributed
local DDP = nn.parallel.DistributedDataParallel

-- A test that takes mpirun.
local function with_mpirun(title, f)
  if launch.missing then
    pending(title .. ": " .. launch.missing)
  else
    it(title, f)
  end
end

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

  with_mpirun("tells all ranks where one has fewer batches", function()
    local text = launch.ranks(2, "parallel", "'too few batches'")
    assert.equal(2, launch.told(text, "told"), text)
  end)
end)
