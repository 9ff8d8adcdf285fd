-- Optimizers keep 16-bit copies of weights for autocast: the copies have the bits of fresh casts
-- after any change of the weight, and save casts and memory.
local dm = require "demilune"
local amp, nn, optim = dm.amp, dm.nn, dm.optim

local function casts(fn)
  local before = dm.autocast_cast_count()
  fn()
  return dm.autocast_cast_count() - before
end

local function region(dtype, fn) return amp.autocast({dtype = dtype}, fn) end

-- A leaf of 3x4, an optimizer that steps it, and a 16-bit input.
local function setup(class, opts)
  dm.manual_seed(3)
  local w = nn.Parameter(dm.randn(3, 4))
  return w, optim[class or "SGD"]({w}, opts or {lr = 0.1}), dm.randn(2, 4):bfloat16()
end

local function used(w, x, dtype)
  return region(dtype or "bfloat16", function()
    return nn.functional.linear(x:to(dtype or "bfloat16"), w)
  end)
end

local function by_hand(w, x, dtype)
  return nn.functional.linear(x:to(dtype or "bfloat16"), w:detach():to(dtype or "bfloat16"))
end

local function step(w, opt, x, dtype)
  opt:zero_grad()
  used(w, x, dtype):float():pow(2):sum():backward()
  opt:step()
end

describe("16-bit copies of weights", function()
  for _, class in ipairs{"SGD", "Adam", "AdamW"} do
    for _, dtype in ipairs{"bfloat16", "float16"} do
      it(class .. ", " .. dtype .. ": only the first step casts; bits are those of a cast",
        function()
          local w, opt, x = setup(class)
          local seen = {}
          for i = 1, 4 do
            seen[i] = casts(function() step(w, opt, x, dtype) end)
            assert.is_true(dm.equal(by_hand(w, x, dtype), used(w, x, dtype)))
          end
          assert.same({1, 0, 0, 0}, seen)
        end)
    end
  end

  -- Sizes that a device's steps cut in the middle of an output channel, and that they do not turn.
  local SIZES = {{5, 3, 3, 2}, {40, 60, 3, 3}, {3, 2000, 3, 3}, {2, 2, 1, 3}, {3, 1, 3, 3}}
  for _, size in ipairs(SIZES) do
    it(("of convolutions: %d x %d x %d x %d"):format(table.unpack(size)), function()
      dm.manual_seed(4)
      local w = nn.Parameter(dm.randn(size) / 8)
      local opt, scaler = optim.Adam({w}, {lr = 0.1}), amp.GradScaler{init_scale = 4}
      local x = dm.randn(2, size[2], 4, 4)
      local seen = {}
      for i = 1, 5 do
        opt:zero_grad()
        seen[i] = casts(function()
          local y = region("float16", function() return dm.conv2d(x, w) end)
          local plain = dm.conv2d(x:half(), w:detach():half())
          assert.is_true(dm.equal(plain, y))
          local loss = y:float():mean()
          scaler:scale(i == 4 and loss * math.huge or loss):backward()
        end)
        local before = w:detach():clone()
        scaler:step(opt)
        scaler:update()
        assert.equal(i == 4, dm.equal(before, w))
      end
      local large = w:numel() > 1 << 14 and w.device == "cpu" -- whose copy would take memory
      assert.same(large and {2, 2, 2, 2, 2} or {2, 1, 1, 1, 1}, seen) -- the input is cast always
    end)
  end

  it("the step and its values are those of training that casts", function()
    local w, opt, x = setup("Adam")
    local v, plain = setup("Adam")
    for _ = 1, 5 do
      step(w, opt, x)
      plain:zero_grad()
      v.data = v.data:clone() -- drops the copy
      assert.equal(1, casts(function() used(v, x):float():pow(2):sum():backward() end))
      plain:step()
      assert.is_true(dm.equal(w.data, v.data))
      assert.is_true(dm.equal(w.grad, v.grad))
      assert.equal("float32", w.grad.dtype)
    end
  end)

  it("weights that no optimizer has stepped are cast as in PyTorch", function()
    local w, _, x = setup()
    local frozen = w:detach()
    local off = {enabled = false}
    local function use(v) return nn.functional.linear(x, v or w) end
    local function open(...) -- uses one after the other in one region
      local uses = {...}
      return function()
        region("bfloat16", function() for _, f in ipairs(uses) do f() end end)
      end
    end
    local function inner() region("bfloat16", use) end
    local cases = {
      {"2 uses", 1, open(use, use)},
      {"cache off", 2, function()
        amp.autocast({dtype = "bfloat16", cache_enabled = false}, function() use() use() end)
      end},
      {"2 regions", 2, function() inner() inner() end},
      {"nested", 1, open(use, inner, use)},
      {"disabled in between", 1, open(use, function() amp.autocast(off, function() end) end, use)},
      {"disabled around two regions", 1, function()
        amp.autocast(off, function() inner() inner() end)
      end},
      {"clear in between", 2, open(use, dm.clear_autocast_cache, use)},
      {"frozen", 2, open(function() use(frozen) end, function() use(frozen) end)},
    }
    for _, case in ipairs(cases) do assert.equal(case[2], casts(case[3]), case[1]) end
  end)

  it("a skipped step leaves weight and copy as they were", function()
    local w, opt, x = setup()
    local scaler = amp.GradScaler{init_scale = 4, growth_interval = 1}
    local function iteration(factor)
      opt:zero_grad()
      scaler:scale(used(w, x):float():pow(2):sum() * factor):backward()
      scaler:step(opt)
      scaler:update()
    end
    assert.equal(1, casts(function() iteration(1) end))
    local before = w:detach():clone()
    assert.equal(0, casts(function() iteration(math.huge) end))
    assert.is_true(dm.equal(before, w:detach()))
    assert.equal(0, casts(function() iteration(1) end))
    assert.is_false(dm.equal(before, w:detach()))
    assert.is_true(dm.equal(by_hand(w, x), used(w, x)))
  end)

  it("any other change of the weight makes the copy stale until the next step", function()
    local w, opt, x = setup()
    local changes = {
      function() local _ <close> = dm.no_grad() w:mul_(2) end,
      function() w.data:copy_(dm.randn(3, 4)) end,
      function() w.data[1] = 5 end,
      function() w.data = dm.randn(3, 4) end,
      function()
        local m = nn.Module()
        m.w = w
        m:load_state_dict{w = dm.randn(3, 4)}
      end,
    }
    step(w, opt, x)
    for i, change in ipairs(changes) do
      change()
      assert.equal(1, casts(function()
        assert.is_true(dm.equal(by_hand(w, x), used(w, x)), "change " .. i)
      end))
      step(w, opt, x)
      assert.equal(0, casts(function() used(w, x) end))
    end
  end)

  it("a change inside the region is seen, with and without a copy", function()
    local w = nn.Parameter(dm.ones(1, 3))
    local opt, x = optim.SGD({w}, {lr = 0.0}), dm.ones(1, 3):bfloat16()
    for _ = 1, 2 do
      region("bfloat16", function()
        assert.equal(3, nn.functional.linear(x, w):item())
        w.data:mul_(2)
        assert.equal(6, nn.functional.linear(x, w):item())
      end)
      assert.equal(6, used(w, x):item())
      w.data:mul_(0.5)
      step(w, opt, x)
    end
  end)

  it("a region of the other dtype casts; the next step keeps that dtype", function()
    local w, opt, x = setup()
    step(w, opt, x, "bfloat16")
    assert.equal(1, casts(function()
      local y = used(w, x, "float16")
      assert.equal("float16", y.dtype)
      assert.is_true(dm.equal(by_hand(w, x, "float16"), y))
    end))
    step(w, opt, x, "float16")
    assert.equal(0, casts(function() used(w, x, "float16") end))
    assert.equal(1, casts(function() used(w, x, "bfloat16") end))
  end)

  it("uses of a copy meet as uses of a cast do", function()
    local w = nn.Parameter(dm.ones(1, 1))
    local opt, sums = optim.SGD({w}, {lr = 0.0}), {}
    for round = 1, 2 do -- the second one shows the copy
      for _, cache in ipairs{true, false} do
        opt:zero_grad()
        amp.autocast({dtype = "bfloat16", cache_enabled = cache}, function()
          local a = nn.functional.linear(dm.full({1, 1}, 256.0), w)
          return a:float() + nn.functional.linear(dm.ones(1, 1), w):float()
        end):sum():backward()
        sums[#sums + 1] = w.grad:item()
      end
      opt:step()
      assert.equal(257, sums[2 * round])
    end
    assert.equal(sums[1], sums[3])
  end)

  it("no_grad, gradients, no_grad, gradients in one region", function()
    local w, opt, x = setup()
    step(w, opt, x)
    opt:zero_grad()
    local y = {}
    assert.equal(0, casts(function()
      region("bfloat16", function()
        for i = 1, 4 do
          if i % 2 == 1 then
            local _ <close> = dm.no_grad()
            y[i] = nn.functional.linear(x, w)
          else
            y[i] = nn.functional.linear(x, w)
          end
          assert.equal(i % 2 == 0, y[i].requires_grad)
        end
      end)
    end))
    local sum = y[2] + y[4]
    sum:float():sum():backward()
    assert.equal("float32", w.grad.dtype)
  end)

  it("inference mode shows the copy without a history", function()
    local w, opt, x = setup()
    step(w, opt, x)
    opt:zero_grad()
    region("bfloat16", function()
      do
        local _ <close> = dm.inference_mode()
        assert.is_false(nn.functional.linear(x, w).requires_grad)
      end
      return nn.functional.linear(x, w):float():sum()
    end):backward()
    assert.is_not_nil(w.grad)
  end)

  it("a graph that is walked after the step has the weight it was made with", function()
    local w, opt, x = setup()
    x.requires_grad = true
    for _ = 1, 3 do -- with a cast in the first round, with copies after it
      local weight = w:detach():bfloat16()
      local y = used(w, x):float():sum()
      step(w, opt, x:detach())
      x.grad = nil
      y:backward()
      local want = dm.ones(2, 3, {dtype = "bfloat16"}):matmul(weight)
      assert.is_true(dm.equal(want, x.grad))
      assert.is_true(dm.equal(by_hand(w, x:detach()), used(w, x:detach())))
    end
  end)

  it("one copy a weight, dropped by a step that no region came before", function()
    local w = nn.Parameter(dm.randn(64, 64))
    local opt, x = optim.SGD({w}, {lr = 0.1}), dm.randn(2, 64):bfloat16()
    local function live()
      collectgarbage()
      collectgarbage()
      return dm.memory_allocated(w.device)
    end
    w.grad = dm.ones(64, 64)
    opt:step() -- CUDA keeps its list
    local before = live()
    for _ = 1, 5 do
      used(w, x):float():sum():backward()
      opt:step()
    end
    local copy = live() - before
    assert.is_true(copy >= 64 * 64 * 2 and copy < 64 * 64 * 3, copy)
    opt:step()
    assert.equal(before, live())
    used(w, x)
    opt:step()
    w:free()
  end)

  it("a weight that is not dense has a dense copy", function()
    local w = dm.randn(4, 3):t():detach():requires_grad_()
    local opt, x = optim.Adam({w}, {lr = 0.1}), dm.randn(2, 4):bfloat16()
    for i = 1, 3 do
      assert.equal(i == 1 and 1 or 0, casts(function() step(w, opt, x) end))
      assert.is_true(dm.equal(by_hand(w, x), used(w, x)))
    end
  end)

  it("a large weight is cast in each region: no copy lies beside its gradient", function()
    local w = nn.Parameter(dm.randn(256, 128))
    if w.device ~= "cpu" then return end -- elsewhere a call costs more
    local opt, x = optim.SGD({w}, {lr = 0.1}), dm.randn(2, 128):bfloat16()
    local function run()
      local seen = casts(function() step(w, opt, x) end)
      collectgarbage()
      return seen, dm.memory_allocated(w.device)
    end
    collectgarbage()
    local before = dm.memory_allocated(w.device)
    for _ = 1, 3 do
      local seen, now = run()
      assert.equal(1, seen)
      -- the gradient, and no 64 KiB more; what is left is the last graph's
      assert.is_true(now - before < (128 + 32) * 1024, tostring(now - before))
    end
  end)

  it("a model in training casts its inputs and nothing else", function()
    dm.manual_seed(1)
    local model = nn.Sequential{nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)}
    local opt = optim.AdamW(model:parameters(), {lr = 1e-2})
    local x, y, seen = dm.randn(5, 6), dm.tensor{1, 2, 3, 1, 2}, {}
    for i = 1, 3 do
      seen[i] = casts(function()
        opt:zero_grad()
        region("bfloat16", function()
          return nn.functional.cross_entropy(model(x), y)
        end):backward()
        opt:step()
      end)
    end
    -- four parameters in the first step; what is left are casts of activations
    assert.same({4, 0}, {seen[1] - seen[2], seen[2] - seen[3]})
    model:requires_grad_(false)
    assert.equal(seen[3], casts(function()
      region("bfloat16", function() nn.functional.cross_entropy(model(x), y) end)
    end))
  end)
end)
