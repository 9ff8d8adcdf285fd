-- optim.ZeroRedundancyOptimizer: in a world of one rank in this process, and on several ranks by
-- mpirun, where it is installed.

local dm = require "demilune"
local launch = require "spec.distributed.launch"
local run_checks = require "spec.distributed.zero"
local run_gradient_checks = require "spec.distributed.zero_gradients"
local nn, optim, dist = dm.nn, dm.optim, dm.distributed
local Zero = optim.ZeroRedundancyOptimizer

local with_mpirun = launch.tests(it, pending, "#slow")

local NAME = "ZeroRedundancyOptimizer: "

describe("ZeroRedundancyOptimizer in a world of one rank", function()
  before_each(function() dist.init_process_group() end)
  after_each(function()
    if dist.is_initialized() then dist.destroy_process_group() end
  end)

  it("is the optimizer that it is given", function()
    assert.is_true(run_checks() > 10000)
    assert.is_true(run_gradient_checks() > 1000)
  end)

  it("sends nothing in a step", function()
    local p = dm.zeros(3)
    local zero = Zero({p}, {optimizer_class = optim.SGD, lr = 1})
    local before = dist.stats().calls
    p.grad = dm.ones(3)
    zero:step()
    zero:zero_grad()
    zero:load_state_dict(zero:state_dict())
    assert.equal(before, dist.stats().calls)
    assert.same({-1, -1, -1}, p:totable())
    assert.is_nil(p.grad)
  end)

  it("takes its arguments as PyTorch's does, and the optimizer's own behind", function()
    local function lists() return {dm.zeros(2), dm.zeros(3)} end
    for _, zero in ipairs{Zero(lists(), {optimizer_class = optim.Adam, lr = 0.5}),
      Zero(lists(), optim.Adam, {lr = 0.5}), Zero{params = lists(), optimizer_class = optim.Adam,
      lr = 0.5, parameters_as_bucket_view = true}} do
      assert.equal("ZeroRedundancyOptimizer(Adam(lr = 0.5, betas = {0.9, 0.999}, 2 tensors), "
        .. "1 / 1 of the state)", tostring(zero))
    end
    local model = nn.Linear(2, 1)
    local named = Zero(model:named_parameters(), optim.SGD)
    assert.same({"weight", "bias"}, named.param_groups[1].param_names)
    assert.equal(1e-3, named.defaults.lr)
  end)

  it("refuses what it cannot do", function()
    local function refuses(text, f) assert.refuses("zero_spec.lua:%d+: " .. text, f) end
    local list = {dm.zeros(2)}
    refuses(NAME .. "optimizer_class is missing, wanted a class such as optim.Adam", function()
      Zero(list)
    end)
    refuses(NAME .. "optimizer_class is a table, wanted a class such as optim.Adam", function()
      Zero(list, {optimizer_class = optim.SGD(list)})
    end)
    refuses("Adam: unknown option 'lrr'; did you mean 'lr'", function()
      Zero(list, {optimizer_class = optim.Adam, lrr = 1})
    end)
    refuses(NAME .. "optimizer_class is LBFGS, which takes all parameters as one vector", function()
      Zero(list, {optimizer_class = optim.LBFGS})
    end)
    refuses("SGD: the array of parameters is empty", function() Zero({}, optim.SGD) end)
    local zero = Zero(list, optim.SGD)
    refuses("consolidate_state_dict: to is 1, wanted a rank of the group", function()
      zero:consolidate_state_dict(1)
    end)
    refuses("optimizer.state_dict was called with a dot; hint", function() zero.state_dict() end)
    dist.destroy_process_group()
    refuses(NAME .. "there is no process group any more", function() Zero(list, optim.SGD) end)
  end)
end)

describe("ZeroRedundancyOptimizer on several ranks", function()
  with_mpirun("has the bits of one process's optimizer, and its share of the state", function()
    for n = 2, 3 do
      local text, code = launch.ranks(n, "zero")
      assert.equal(n, launch.count(text, "rank %d of " .. n .. ": %d%d%d%d+ checks"), text)
      assert.equal(0, code)
    end
  end)

  with_mpirun("has them with its share of the gradients, too", function()
    for n = 2, 4 do
      local text, code = launch.ranks(n, "zero_gradients")
      assert.equal(n, launch.count(text, "rank %d of " .. n .. ": %d%d%d%d+ checks"), text)
      assert.equal(0, code)
    end
  end)
end)
