-- nn.SyncBatchNorm: alone, and on several ranks by mpirun, where it is installed.

local dm = require "demilune"
local here = require "spec.device"
local launch = require "spec.distributed.launch"
local nn, dist = dm.nn, dm.distributed

local with_mpirun = launch.tests(it, pending)

local Twice = nn.Module:extend "Twice"
function Twice:forward(x) return self.layers(x) end

-- A net with batch norms in lists, and one that a field holds too.
local function net()
  dm.manual_seed(3)
  local model = Twice()
  model.layers = nn.Sequential{nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(),
    nn.Sequential{nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4, {affine = false, momentum = 0.2})},
    nn.Flatten(), nn.Linear(16, 3), nn.BatchNorm1d(3, {track_running_stats = false})}
  model.again = model.layers[2]
  return model
end

describe("SyncBatchNorm alone", function()
  after_each(function()
    if dist.is_initialized() then dist.destroy_process_group() end
  end)

  local function trained(model)
    dm.manual_seed(5)
    local x = dm.randn(6, 2, 6, 6)
    local y = model(x)
    y:square():sum():backward()
    local out = {y:detach()}
    for _, p in ipairs(model:parameters()) do out[#out + 1] = p.grad end
    for _, b in ipairs(model:buffers()) do out[#out + 1] = b end
    out[#out + 1] = model:eval()(x):detach()
    return out
  end

  local function same_bits()
    local a, b = trained(net()), trained(nn.SyncBatchNorm.convert_sync_batchnorm(net()))
    assert.equal(#a, #b)
    for i, t in ipairs(a) do assert.is_true(t:equal(b[i])) end
  end

  it("is BatchNorm bit by bit, without a process group and in a world of one", function()
    same_bits()
    dist.init_process_group()
    same_bits()
  end)

  it("stands where a batch norm stood, with its tensors, options and mode", function()
    local model = net():eval()
    local layers = model.layers
    local old, inner = layers[2], layers[4][2]
    local names = {}
    for name in pairs(model:state_dict()) do names[#names + 1] = name end
    assert.equal(model, nn.SyncBatchNorm.convert_sync_batchnorm(model))
    assert.equal("SyncBatchNorm", layers[2].class)
    assert.equal(layers[2], model.again)
    assert.equal(old.weight, layers[2].weight)
    assert.equal(old.running_var, layers[2].running_var)
    assert.is_false(layers[2].training)
    assert.equal(0.2, layers[4][2].momentum)
    assert.is_nil(layers[4][2].weight)
    assert.equal(inner.num_batches_tracked, layers[4][2].num_batches_tracked)
    assert.is_nil(layers[7].running_mean)
    for name in pairs(model:state_dict()) do assert.equal(table.remove(names, 1), name) end
    local norm = nn.BatchNorm1d(3)
    local one = nn.SyncBatchNorm.convert_sync_batchnorm(norm)
    assert.equal("SyncBatchNorm", one.class)
    assert.equal(norm.bias, one.bias)
    assert.equal("BatchNorm1d", norm.class)
    assert.matches("SyncBatchNorm%(3%)", tostring(one))
  end)

  it("refuses what it cannot do", function()
    assert.refuses("sync_norm_spec.lua:%d+: in SyncBatchNorm%(3%): SyncBatchNorm: x is {3}, wanted",
      function() nn.SyncBatchNorm(3)(dm.ones(3)) end)
    assert.refuses("SyncBatchNorm: eps is 0, wanted above 0", function()
      nn.SyncBatchNorm(3, {eps = 0})
    end)
    assert.refuses("SyncBatchNorm: process_group is 3, wanted a group", function()
      nn.SyncBatchNorm(3, {process_group = 3})
    end)
    assert.refuses("convert_sync_batchnorm: this LazyBatchNorm2d has no tensors before its first "
      .. "call; hint", function()
      nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential{nn.LazyBatchNorm2d()})
    end)
  end)
end)

describe("SyncBatchNorm on several ranks", function()
  for n = 2, 3 do
    local title = ("does what BatchNorm does with the whole batch, on %d"):format(n)
    with_mpirun(title, function()
      local text, code = launch.ranks(n, "sync_norm", here.type)
      assert.equal(n, launch.count(text, ("rank %%d of %d: SyncBatchNorm\n"):format(n)), text)
      assert.equal(0, code)
    end)
  end

  with_mpirun("has the statistics of its group alone, beside DistributedDataParallel", function()
    local text, code = launch.ranks(4, "sync_groups", here.type)
    assert.equal(4, launch.count(text, "rank %d: groups\n"), text)
    assert.equal(0, code)
  end)
end)
