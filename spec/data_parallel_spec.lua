-- nn.DataParallel: several GPUs of one process, of which the emulation has two.

local dm = require "demilune"
local here = require "spec.device"
local nn, optim = dm.nn, dm.optim

local n_gpu = dm.cuda.is_available() and dm.cuda.device_count() or 0

-- A test that takes two GPUs.
local function with_gpus(title, f)
  if here.type ~= "cuda" or n_gpu < 2 then
    pending(title .. ": no two GPUs here")
  else
    it(title, f)
  end
end

local function net()
  dm.manual_seed(3)
  local tied = nn.Linear(6, 6)
  return nn.Sequential{nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), tied, nn.Tanh(), tied,
    nn.Linear(6, 2)}
end

local function near(a, b, tolerance)
  assert.is_true((a:detach() - b:detach()):abs():amax():item() <= tolerance)
end

describe("DataParallel", function()
  it("calls the module where no GPU is asked for", function()
    dm.manual_seed(1)
    local module, x = nn.Linear(4, 2), dm.randn(5, 4)
    local model = nn.DataParallel(module, {device_ids = {}})
    assert.is_true(module(x):equal(model(x)))
    local names = {}
    for name in pairs(model:state_dict()) do names[#names + 1] = name end
    assert.same({"module.weight", "module.bias"}, names)
  end)

  it("refuses devices that are not there", function()
    local module = nn.Linear(4, 2)
    local function refuses(text, ids)
      assert.refuses("data_parallel_spec.lua:%d+: DataParallel: " .. text, function()
        nn.DataParallel(module, {device_ids = ids})
      end)
    end
    refuses("device 99, wanted one of the %d+ GPUs here; hint", {99})
    refuses("device cpu, wanted one of", {"cpu"})
    refuses("device cuda:x, wanted one of", {"cuda:x"})
    assert.refuses("DataParallel: module is 3, wanted a module", function() nn.DataParallel(3) end)
  end)

  with_gpus("gives the results and the gradients of one GPU", function()
    local whole = net():eval():to "float64"
    local model = nn.DataParallel(net():eval():to "float64", {0, "cuda:1"})
    for _, n in ipairs{7, 2, 1} do
      local x = dm.randn(n, 4, {dtype = "float64", requires_grad = true})
      local again = x:detach():clone():requires_grad_()
      local y, z = whole(x), model(again)
      assert.equal("cuda:0", z.device)
      near(y, z, 1e-14)
      y:square():sum():backward()
      z:square():sum():backward()
      near(x.grad, again.grad, 1e-13)
      for name, p in whole:named_parameters() do
        near(p.grad, model.module:get_parameter(name).grad, 1e-12)
      end
    end
  end)

  with_gpus("trains in mixed precision with one scaler, and keeps one GPU's buffers", function()
    local model = nn.DataParallel(net())
    local optimizer = optim.SGD(model:parameters(), {lr = 0.1})
    local scaler = dm.amp.GradScaler{device = "cuda"}
    local losses = {}
    for step = 1, 20 do
      dm.manual_seed(step)
      local x = dm.randn(16, 4)
      local y = x:select(2, 1):gt(0):to "int64" + 1
      optimizer:zero_grad()
      local loss
      do
        local _ <close> = dm.amp.autocast{device_type = "cuda", dtype = "float16"}
        local scores = model(x)
        assert.equal("float16", scores.dtype)
        loss = nn.functional.cross_entropy(scores, y)
      end
      scaler:scale(loss):backward()
      scaler:step(optimizer)
      scaler:update()
      losses[step] = loss:item()
    end
    assert.is_true(losses[20] < losses[1])
    assert.equal(20, model.module[2].num_batches_tracked:item())
  end)

  with_gpus("takes and gives tables, other values, several results and losses", function()
    local Pair = nn.Module:extend "Pair"
    local seen = {}
    function Pair.forward(_, x, word)
      seen[#seen + 1] = {x.a.device, word}
      return {sum = x.a + x.list[1], word = word}, x.a:sum()
    end
    local model = nn.DataParallel(Pair())
    local a = dm.arange(6):to "float32"
    local out, sums = model({a = a, list = {a * 2}}, "word")
    assert.same({3, 6, 9, 12, 15, 18}, out.sum:totable())
    assert.equal("word", out.word)
    assert.same({6, 15}, sums:totable())
    assert.same({{"cuda:0", "word"}, {"cuda:1", "word"}}, seen)
    seen = {}
    assert.same({3, 6, 9}, (model{a = a[{{1, 3}}], list = {a[{{1, 3}}] * 2}}).sum:totable())
    local across = nn.DataParallel(Pair(), {dim = 2, output_device = 1})
    local b = a:reshape(2, 3)
    out = across{a = b, list = {b}}
    assert.equal("cuda:1", out.sum.device)
    assert.same({{2, 4, 6}, {8, 10, 12}}, out.sum:totable())
    assert.refuses("DataParallel: inputs have 5 and 6 elements in dim 1, wanted", function()
      model({a = a, list = {a[{{1, 5}}]}})
    end)
    assert.refuses("DataParallel: an input is {6}, wanted 2 dims", function()
      across{a = a, list = {a}}
    end)
    assert.refuses("DataParallel: 'weight' is on cuda:1, wanted cuda:0, the first of device_ids",
      function() nn.DataParallel(nn.Linear(2, 2):to "cuda:1") end)
    assert.refuses("DataParallel: cuda:0 is given twice", function()
      nn.DataParallel(nn.Linear(2, 2), {0, "cuda"})
    end)
  end)
end)
