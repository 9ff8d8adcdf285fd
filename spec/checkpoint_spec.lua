-- nn.utils.checkpoint gives the gradients of a plain call, bit for bit, and uses less memory.

local dm = require "demilune"
local hooks = require("demilune.core")._test
local DEVICE = require("spec.device").type
local nn, amp, F = dm.nn, dm.amp, dm.nn.functional
local checkpoint = nn.utils.checkpoint


local caller = require "demilune.caller"
local sink = caller.sink
setup(function() caller.sink = function() end end) -- backward() inside regions warns
teardown(function() caller.sink = sink end)

local function same(a, b)
  assert.equal(a.dtype, b.dtype)
  assert.is_true(dm.equal(a, b))
end

local function mlp(dropout)
  return nn.Sequential{
    nn.Linear(6, 16), nn.GELU(), nn.Dropout(dropout or 0), nn.LayerNorm(16),
    nn.Linear(16, 5), nn.Tanh(),
  }
end

-- Output, gradient of the input and of the parameters, of a call through `how`.
local function gradients(model, how, autocast)
  dm.manual_seed(7)
  local x = dm.randn(4, 6):requires_grad_()
  model:zero_grad()
  local y
  if autocast then
    y = amp.autocast({dtype = autocast}, function() return how(model, x) end)
  else
    y = how(model, x)
  end
  dm.randn(3) -- the generator moves on before backward
  y:float():square():sum():backward()
  local out = {y:detach(), x.grad}
  for _, p in ipairs(model:parameters()) do out[#out + 1] = p.grad end
  return out
end

local function plain(model, x) return model(x) end

local function compare(autocast)
  dm.manual_seed(1)
  local model = mlp(0.5)
  local want = gradients(model, plain, autocast)
  local got = gradients(model, checkpoint, autocast)
  assert.equal(#want, #got)
  for i = 1, #want do same(want[i], got[i]) end
end

describe("a checkpoint", function()
  it("gives the bits of a plain call, with dropout inside", function() compare() end)
  it("does so under bfloat16 autocast", function() compare "bfloat16" end)
  it("does so under float16 autocast", function() compare "float16" end)

  it("of three linear layers on float16 input under autocast works", function()
    local model = nn.Sequential{nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)}
    local x = dm.randn(8, 8):half():requires_grad_()
    local y = amp.autocast({dtype = "float16"}, function() return checkpoint(model, x) end)
    assert.equal("float16", y.dtype)
    assert.is_true(y.requires_grad)
    y:sum():backward()
    assert.equal("float16", x.grad.dtype)
    for _, p in ipairs(model:parameters()) do assert.equal("float32", p.grad.dtype) end
  end)

  it("runs again in the autocast state of its forward, whatever is on in backward", function()
    local seen = {}
    local function fn(x)
      seen[#seen + 1] = ("%s %s %s"):format(amp.is_autocast_enabled(DEVICE),
        amp.get_autocast_dtype(DEVICE), dm.is_autocast_cache_enabled())
      return x:mm(x):float()
    end
    local x = dm.randn(3, 3, {requires_grad = true})
    local y = amp.autocast({dtype = "float16", cache_enabled = false}, function()
      return checkpoint(fn, x)
    end)
    coroutine.wrap(function()
      local _ <close> = amp.autocast{dtype = "bfloat16"}
      y:sum():backward()
      assert.equal("bfloat16", amp.get_autocast_dtype(DEVICE))
      assert.is_true(amp.is_autocast_enabled(DEVICE))
    end)()
    assert.same({"true float16 false", "true float16 false"}, seen)
  end)

  it("takes other arguments, gives several results, and none for a tensor of integers", function()
    local calls = 0
    local function fn(scale, x, opts, ids)
      calls = calls + 1
      local h = (x * scale):exp()
      return h:sum(), opts.name, h[ids]
    end
    local x = dm.tensor({1.0, 2.0, 3.0}, {requires_grad = true})
    local sum, name, some = checkpoint(fn, 0.5, x, {name = "n"}, dm.tensor{1, 3})
    assert.equal("n", name);
    (sum + some:square():sum()):backward()
    assert.equal(2, calls)
    local got = x.grad
    x.grad = nil
    local a, _, b = fn(0.5, x, {name = "n"}, dm.tensor{1, 3});
    (a + b:square():sum()):backward()
    same(x.grad, got)
  end)

  it("reaches tensors that the function uses by itself", function()
    local w = dm.tensor({3.0}, {requires_grad = true})
    local scale = w * 2 -- no leaf
    local x = dm.tensor{5.0}
    local y = checkpoint(function(v) return (v * scale):square() * w end, x)
    assert.is_true(y.requires_grad)
    y:backward()
    assert.equal(2700, w.grad:item()) -- of 4 x^2 w^3
  end)

  it("may lie in another", function()
    dm.manual_seed(3)
    local model = mlp(0.25)
    local function nested(m, x)
      return checkpoint(function(v)
        v = checkpoint(m[1], v)
        v = checkpoint(function(u) return checkpoint(m[3], m[2](u):exp()) end, v)
        return checkpoint(function(u) return m[6](m[5](m[4](u))) end, v)
      end, x)
    end
    local function flat(m, x)
      local v = m[3](m[2](m[1](x)):exp())
      return m[6](m[5](m[4](v)))
    end
    for _, autocast in ipairs{false, "bfloat16"} do
      local want, got = gradients(model, flat, autocast), gradients(model, nested, autocast)
      for i = 1, #want do same(want[i], got[i]) end
    end
  end)

  it("serves autograd.grad, a retained graph, and a second derivative", function()
    local x = dm.tensor({0.5, 1.5}, {requires_grad = true})
    local function fn(v) return (v:sin() * v):exp() end
    local want = dm.autograd.grad(fn(x):sum(), x)
    local y = checkpoint(fn, x):sum()
    same(want, (dm.autograd.grad(y, x, {retain_graph = true})))
    same(want, (dm.autograd.grad(y, x)))
    local function second(f)
      local g = dm.autograd.grad(f(x):sum(), x, {create_graph = true})
      return (dm.autograd.grad(g:square():sum(), x))
    end
    same(second(fn), second(function(v) return checkpoint(fn, v) end))
  end)

  it("holds functions of one's own, and changes in place", function()
    local Exp = dm.autograd.Function{
      forward = function(ctx, x)
        local y = x:exp()
        ctx:save_for_backward(y)
        return y
      end,
      backward = function(ctx, gy) return gy * ctx:saved_tensors() end,
    }
    local function fn(v)
      local h = Exp(v) * 2
      h:mul_(h:detach():clone())
      return h:relu_()
    end
    local x = dm.tensor({0.5, -1.0}, {requires_grad = true})
    local want = dm.autograd.grad(fn(x):sum(), x)
    same(want, (dm.autograd.grad(checkpoint(fn, x):sum(), x)))
  end)

  it("holds a function that asks for gradients itself", function()
    local function fn(v)
      local h = (v:sin() * v):sum()
      return v + dm.autograd.grad(h, v, {create_graph = true})
    end
    local x = dm.tensor({0.5, 1.5}, {requires_grad = true})
    local want = dm.autograd.grad(fn(x):square():sum(), x)
    same(want, (dm.autograd.grad(checkpoint(fn, x):square():sum(), x)))
  end)

  it("just runs where nothing is recorded", function()
    local calls = 0
    local function fn(x)
      calls = calls + 1
      return x * 2
    end
    local x = dm.ones(2, {requires_grad = true})
    assert.is_false(dm.no_grad(function() return checkpoint(fn, x).requires_grad end))
    assert.is_false(dm.inference_mode(function() return checkpoint(fn, x).requires_grad end))
    checkpoint(fn, dm.ones(2))
    assert.equal(3, calls)
  end)

  it("draws new numbers the second time, if told to", function()
    local drawn = {}
    local function fn(x)
      drawn[#drawn + 1] = dm.rand(1):item()
      return x:square()
    end
    local x = dm.ones(1, {requires_grad = true})
    local function twice(opts)
      drawn = {}
      checkpoint(fn, x, opts):sum():backward()
      return drawn[1] == drawn[2]
    end
    assert.is_true(twice{use_reentrant = false})
    assert.is_false(twice{preserve_rng_state = false})
    dm.manual_seed(1)
    local y = checkpoint(fn, x)
    local state = dm.get_rng_state()
    y:sum():backward()
    assert.same(state, dm.get_rng_state())
  end)

  it("refuses a function that does something else the second time", function()
    local calls = 0
    local x = dm.ones(2, {requires_grad = true})
    local function fewer(v)
      calls = calls + 1
      return calls == 1 and v:square():exp() or v:square()
    end
    local y = checkpoint(fewer, x)
    assert.refuses("saved 1 tensors .* at first 2", function() y:sum():backward() end)
    calls = 0
    local function other(v)
      calls = calls + 1
      return (calls == 1 and v or dm.cat{v, v}):exp():sum()
    end
    y = checkpoint(other, x)
    assert.refuses("shape {4}.*at first {2}", function() y:backward() end)
    assert.is_nil(x.grad)
  end)

  it("finds that an argument or a weight was changed since", function()
    local w = dm.ones(2, {requires_grad = true})
    local x = dm.ones(2)
    local y = checkpoint(function(v) return v * w end, x)
    x:add_(1)
    assert.refuses("changed in place", function() y:sum():backward() end)
    y = checkpoint(function(v) return (v * w):square() end, x:clone():requires_grad_())
    dm.no_grad(function() w:add_(1) end)
    assert.refuses("changed in place", function() y:sum():backward() end)
  end)

  it("passes on an error of the second run, and leaves every mode as it was", function()
    local calls = 0
    local x = dm.ones(2, {requires_grad = true})
    local y = checkpoint(function(v)
      calls = calls + 1
      if calls == 2 then error "the second time" end
      return v:exp()
    end, x)
    assert.refuses("the second time", function() y:sum():backward() end)
    assert.is_true((x * 2).requires_grad)
    y:sum():backward() -- the third run is fine
    assert.is_near(math.exp(1), x.grad[1]:item(), 1e-6)
  end)

  it("leaves an error of the first run as it is", function()
    local x = dm.ones(2, {requires_grad = true})
    assert.refuses("at once", function() checkpoint(function() error "at once" end, x) end)
    local y = (x * x):sum() -- not checkpointed
    y:backward()
    assert.equal(2, x.grad[1]:item())
  end)

  it("names an unknown option", function()
    assert.refuses("unknown option 'use_rentrant'", function()
      checkpoint(function() end, {preserve_rng_state = true, use_rentrant = false})
    end)
  end)

  it("uses less memory, and gives it back", function()
    local layers = {}
    for i = 1, 12 do
      layers[i] = nn.Sequential{nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64)}
    end
    local x = dm.randn(512, 64)
    local function peak(how)
      collectgarbage()
      collectgarbage()
      dm.reset_peak_memory_stats(DEVICE)
      local before = dm.memory_allocated(DEVICE)
      do
        local _ <close> = dm.scope()
        local h = x:clone():requires_grad_()
        for i = 1, #layers do
          h = how(function(v) return dm.scope(function() return layers[i](v) end) end, h)
        end
        h:sum():backward()
      end
      for i = 1, #layers do layers[i]:zero_grad() end
      local most = dm.max_memory_allocated(DEVICE) - before
      collectgarbage()
      collectgarbage()
      assert.equal(before, dm.memory_allocated(DEVICE))
      return most
    end
    local limit = dm.autograd.get_recompute_bytes()
    dm.autograd.set_recompute_bytes(math.huge) -- the results of gelu would be left out, too
    local all = peak(function(fn, v) return fn(v) end)
    dm.autograd.set_recompute_bytes(limit)
    local less = peak(checkpoint)
    assert.is_true(less < 0.45 * all, ("%d of %d"):format(less, all))
  end)

  it("gives all back when backward never comes", function()
    local w = dm.randn(8, 8, {requires_grad = true})
    local function once()
      return checkpoint(function(v) return v:mm(w):tanh() end, dm.randn(8, 8))
    end
    once()
    collectgarbage()
    collectgarbage()
    local blocks = hooks.alloc_live()
    for _ = 1, 5 do once() end
    collectgarbage()
    collectgarbage()
    assert.equal(blocks, hooks.alloc_live())
  end)

  it("a coroutine that the function starts and leaves is outside it", function()
    local co
    local x = dm.ones(2, {requires_grad = true})
    checkpoint(function(v)
      co = coroutine.wrap(function()
        local h = x:exp()
        coroutine.yield()
        coroutine.yield(h:square():sum())
      end)
      co()
      return v:sin()
    end, x)
    local z = co()
    collectgarbage()
    z:backward()
    assert.is_near(2 * math.exp(2), x.grad[1]:item(), 1e-5)
  end)
end)

describe("checkpoint_sequential", function()
  it("gives the gradients of the whole", function()
    local model = mlp(0.5)
    for segments = 1, 6 do
      local want = gradients(model, plain)
      local got = gradients(model, function(m, x)
        return nn.utils.checkpoint_sequential(m, segments, x)
      end)
      for i = 1, #want do same(want[i], got[i]) end
    end
  end)

  it("refuses more segments than functions", function()
    assert.refuses("7 segments for 6", function()
      nn.utils.checkpoint_sequential(mlp(), 7, dm.ones(1, 6))
    end)
  end)

  it("takes an array of functions", function()
    local x = dm.tensor({2.0}, {requires_grad = true})
    nn.utils.checkpoint_sequential({dm.square, dm.exp, F.relu}, 2, x):backward()
    assert.is_near(4 * math.exp(4), x.grad:item(), 1e-3)
  end)
end)
