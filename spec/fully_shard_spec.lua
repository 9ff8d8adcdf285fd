-- nn.parallel.fully_shard: in a world of one rank in this process, and on several ranks by mpirun,
-- where it is installed.

local dm = require "demilune"
local launch = require "spec.distributed.launch"
local run_checks = require "spec.distributed.fully_shard"
local nn, optim, dist = dm.nn, dm.optim, dm.distributed
local fully_shard = nn.parallel.fully_shard

local with_mpirun = launch.tests(it, pending, "#slow")

describe("fully_shard in a world of one rank", function()
  before_each(function() dist.init_process_group() end)
  after_each(function()
    if dist.is_initialized() then dist.destroy_process_group() end
  end)

  it("has the bits of the module itself", function() assert.is_true(run_checks() > 1000) end)

  it("leaves the module as it is, and sends nothing", function()
    local model = nn.Sequential{nn.Linear(3, 4), nn.Linear(4, 2)}
    local weight = model[1].weight
    assert.equal(model[1], fully_shard(model[1]))
    assert.equal(model, fully_shard(model))
    assert.is_true(rawequal(weight, model[1].weight))
    assert.equal(getmetatable(nn.Linear(1, 1)).forward, model[1].forward)
    local before = dist.stats().calls
    local optimizer = optim.SGD(model:parameters(), {lr = 1})
    model:no_sync(function() model(dm.ones(2, 3)):sum():backward() end)
    model(dm.ones(2, 3)):sum():backward()
    assert.same({4, 4}, model[2].bias.grad:totable())
    optimizer:step()
    assert.equal(before, dist.stats().calls)
    assert.same({"0.bias", "0.weight", "1.bias", "1.weight"}, (function()
      local names = {}
      for name in pairs(model:state_dict()) do names[#names + 1] = name end
      table.sort(names)
      return names
    end)())
  end)

  it("refuses what it cannot do", function()
    local function refuses(text, f) assert.refuses("fully_shard_spec.lua:%d+: " .. text, f) end
    local model = fully_shard(nn.Linear(3, 4))
    refuses("fully_shard: this Linear is divided already", function() fully_shard(model) end)
    refuses("fully_shard: module is a tensor, wanted a module", function()
      fully_shard(dm.ones(2))
    end)
    local ddp = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    refuses("fully_shard: the module is a DistributedDataParallel, which keeps parameters whole",
      function() fully_shard(ddp) end)
    refuses("fully_shard: parameter 'weight' belongs to a DistributedDataParallel", function()
      fully_shard(ddp.module)
    end)
    dist.destroy_process_group()
    refuses("fully_shard: there is no process group any more", function()
      fully_shard(nn.Linear(2, 2))
    end)
  end)
end)

describe("fully_shard on several ranks", function()
  with_mpirun("has the bits of DistributedDataParallel, and its slices of all", function()
    for n = 2, 4 do
      local text, code = launch.ranks(n, "fully_shard")
      assert.equal(n, launch.count(text, "rank %d of " .. n .. ": %d%d%d%d+ checks"), text)
      assert.equal(0, code)
    end
  end)
end)
