-- nn.parallel.LocalSGD: in a world of one rank in this process, and on several ranks by mpirun,
-- where it is installed.

local dm = require "demilune"
local launch = require "spec.distributed.launch"
local run_checks = require "spec.distributed.local_sgd"
local nn, optim, dist = dm.nn, dm.optim, dm.distributed
local LocalSGD = nn.parallel.LocalSGD

local with_mpirun = launch.tests(it, pending)

describe("LocalSGD in a world of one rank", function()
  before_each(function() dist.init_process_group() end)
  after_each(function()
    if dist.is_initialized() then dist.destroy_process_group() end
  end)

  it("does on one rank what it does on several", function()
    assert.is_true(run_checks() > 200)
  end)

  -- The parameters behind ten steps, with average_parameters if the model has it.
  local function trained(model)
    local optimizer = optim.SGD(model:parameters(), {lr = 0.1, momentum = 0.9})
    for step = 1, 10 do
      optimizer:zero_grad()
      model(dm.ones(2, 3) * step):square():mean():backward()
      optimizer:step()
      if model.average_parameters then model:average_parameters() end
    end
    return nn.utils.parameters_to_vector(model:parameters())
  end

  local function linear()
    dm.manual_seed(4)
    return nn.Linear(3, 2)
  end

  it("changes no bit, keeps nothing and sends nothing without outer", function()
    local model = LocalSGD(linear(), {every = 3, warmup = 2, wire = "bfloat16"})
    local before = dist.stats().calls
    assert.is_true(trained(linear()):equal(trained(model)))
    assert.equal(before, dist.stats().calls)
    local state = model:state_dict()
    assert.same({8 % 3, 10}, {state.since, state.step})
    assert.is_nil(state.common)
  end)

  it("lets an outer optimizer act, which with lr = 1 is the averaging itself", function()
    for _, lr in ipairs{1, 0.5} do
      local module = linear():double()
      local model = LocalSGD(module, {every = 5, outer = optim.SGD(module:parameters(), {lr = lr})})
      local optimizer = optim.SGD(model:parameters(), {lr = 0.1})
      local from = module.weight:detach():clone()
      for _ = 1, 5 do
        optimizer:zero_grad()
        module.weight:sum():backward()
        optimizer:step()
        model:average_parameters()
      end
      assert.is_true((module.weight - (from - 0.5 * lr)):abs():amax():item() < 1e-15)
    end
  end)

  it("makes no outer step where nothing was trained", function()
    local module = linear()
    local model = LocalSGD(module, {every = 5, outer = optim.SGD(module:parameters(),
      {lr = 0.7, momentum = 0.9})})
    module.weight.data:add_(1)
    assert.is_false(model:average_parameters())
    assert.is_true(model:average_parameters{now = true})
    local before = module.weight:detach():clone()
    assert.is_true(model:average_parameters{now = true})
    assert.is_true(module.weight:equal(before))
  end)

  it("takes the state of the module alone", function()
    local module, other = linear(), nn.Linear(3, 2)
    local model = LocalSGD(module, {every = 5, outer = optim.SGD(module:parameters())})
    model:average_parameters()
    local keys = model:load_state_dict(other:state_dict())
    assert.same({}, keys.missing_keys)
    assert.is_true(module.weight:equal(other.weight))
    local state = model:state_dict()
    assert.is_true(state.common.weight:equal(other.weight))
    assert.same({1, 0}, {state.step, state.since})
  end)

  it("is a module whose own one is the file's, in dm.save too", function()
    local module = linear()
    local model = LocalSGD(module, {every = 5, outer = optim.SGD(module:parameters())})
    local path = os.tmpname()
    finally(function() os.remove(path) end)
    assert(dist.save(path, {model = model, epoch = 2}))
    local tree = assert(dm.load(path))
    local weight = module.weight:detach():cpu()
    assert.is_true(tree.model.module.weight:equal(weight))
    assert.is_true(tree.model.common.weight:equal(weight))
    assert.equal(2, dist.load(path, {model = model}).epoch)
  end)

  it("refuses what it cannot do", function()
    local function refuses(text, f) assert.refuses("local_sgd_spec.lua:%d+: " .. text, f) end
    local module = linear()
    local function with(o) return function() LocalSGD(module, o) end end
    local NAME = "LocalSGD: "
    refuses(NAME .. "every is missing", with{})
    refuses(NAME .. "every is 0, wanted steps from 1 up", with{every = 0})
    refuses(NAME .. "warmup is %-1, wanted steps from 0 up", with{every = 2, warmup = -1})
    refuses(NAME .. "wire is 'int8', wanted a float of 16 bits", with{every = 2,
      wire = "int8"})
    refuses(NAME .. "unknown option 'evry'", with{evry = 2})
    refuses(NAME .. "outer is 3, wanted an optimizer", with{every = 2, outer = 3})
    refuses(NAME .. "outer does not have parameter 'bias'; hint: outer = optim.SGD", with{every = 2,
      outer = optim.SGD{module.weight}})
    refuses(NAME .. "outer has 1 parameters that the module has not", with{every = 2,
      outer = optim.SGD{module.weight, module.bias, dm.ones(2)}})
    refuses(NAME .. "outer is a ZeroRedundancyOptimizer, wanted", with{every = 2,
      outer = optim.ZeroRedundancyOptimizer(module:parameters(), optim.SGD)})
    refuses(NAME .. "no parameter of this ReLU requires a gradient", function()
      LocalSGD(nn.ReLU(), {every = 2})
    end)
    refuses(NAME .. "parameter 'weight' is bfloat16, to which means would be rounded", function()
      LocalSGD(nn.Linear(2, 1):bfloat16(), {every = 2})
    end)
    local model = LocalSGD(module, {every = 2})
    refuses(NAME .. "parameter 'weight' belongs to another Distributed", with{every = 2})
    refuses("join: all ranks of a LocalSGD make as many steps; hint", function() model:join() end)
    refuses("LocalSGD:copy: a copy would", function() model:copy() end)
    refuses("average_parameters: now is 3, wanted", function()
      model:average_parameters{now = 3}
    end)
    refuses("model.average_parameters was called with a dot", function()
      model.average_parameters()
    end)
    dist.destroy_process_group()
    refuses(NAME .. "there is no process group any more", function()
      LocalSGD(linear(), {every = 2})
    end)
  end)

  it("refuses a state that is not its own, and stays as it was", function()
    local module = linear()
    local model = LocalSGD(module, {every = 2, outer = optim.SGD(module:parameters())})
    local before = module.weight:detach():clone()
    local function refuses(text, changes)
      local other = linear()
      other.weight.data:fill_(7)
      local state = {module = other:state_dict(), step = 1, since = 0}
      for key, value in pairs(changes) do state[key] = value end
      assert.refuses("local_sgd_spec.lua:%d+: .*" .. text, function()
        model:load_state_dict(state)
      end)
      assert.is_true(module.weight:equal(before))
    end
    local name = "LocalSGD:load_state_dict: "
    refuses(name .. "step is %-1, wanted a number of steps", {step = -1})
    refuses(name .. "since is x, wanted", {since = "x"})
    refuses(name .. "common is a number, wanted a table", {common = 3})
    refuses(name .. "common 'weight' is nil, wanted {2, 3}", {common = {}})
    refuses("SGD:load_state_dict: 0 groups, wanted 1", {outer = {state = {}, param_groups = {}}})
    refuses("missing", {module = {}})
    local plain = LocalSGD(linear(), {every = 2})
    assert.refuses("the state has an outer optimizer, and this LocalSGD none", function()
      plain:load_state_dict(model:state_dict())
    end)
  end)
end)

describe("LocalSGD on several ranks", function()
  with_mpirun("trains as a loop that keeps all models in one process", function()
    for n = 2, 3 do
      local text, code = launch.ranks(n, "local_sgd")
      assert.equal(n, launch.count(text, "rank %d of " .. n .. ": %d%d%d checks"), text)
      assert.equal(0, code)
    end
  end)
end)
