-- add_layer_norm on a GPU is one kernel; it has the bits of the sum, the norm and the cast that it
-- takes the place of, forward and backward.
local dm = require "demilune"
local both = require "spec.cuda.both"
local amp, nn = dm.amp, dm.nn

if both.missing() then return end

-- x and delta, their sum and its norm by f, weighted, and the gradients of all inputs.
local function results(f, low, rows, len, keep_sum)
  dm.manual_seed(3)
  local x, delta = dm.randn(rows, len), dm.randn(rows, len)
  local w, b = dm.rand(len) + 0.5, dm.randn(len)
  local gs, gy = dm.randn(rows, len), dm.randn(rows, len)
  if low then delta, gy = delta:to(low), gy:to(low) end
  for _, t in ipairs{x, delta, w, b} do t:requires_grad_() end
  local sum, y = amp.autocast({dtype = low, enabled = low ~= nil}, function()
    return f(x, delta, len, w, b)
  end)
  local loss = (y * gy):float():sum()
  if keep_sum then loss = loss + (sum * gs):sum() end
  loss:backward()
  return {sum, y, x.grad, delta.grad, w.grad, b.grad}
end

local NEAR = {float16 = 2^-10, bfloat16 = 2^-7, float32 = 1e-5}

local function fused(x, delta, len, w, b) return dm.add_layer_norm(x, delta, {len}, w, b) end
local function apart(x, delta, len, w, b)
  local sum = x + delta
  local y = dm.layer_norm(sum, {len}, w, b)
  if delta.dtype ~= "float32" then y = y:to(delta.dtype) end
  return sum, y
end

describe("add_layer_norm on cuda", function()
  it("has the bits of the ops apart, for rows of a warp, a block and more", function()
    both.on("cuda", function()
      for _, low in ipairs{false, "float16", "bfloat16"} do
        for _, len in ipairs{1, 7, 8, 96, 1000, 4100, 4101} do
          for _, keep in ipairs{true, false} do
            local want = results(apart, low or nil, 3, len, keep)
            local got = results(fused, low or nil, 3, len, keep)
            for i, t in ipairs(want) do
              local what = ("%s, %d, result %d"):format(low, len, i)
              -- a row of one element is all rounding, which 1 / sqrt(eps) makes larger
              both.alike(t:detach(), got[i]:detach(), what, len == 1 and 1e-3 or NEAR[t.dtype])
            end
          end
        end
      end
    end)
  end)

  it("has second derivatives", function()
    both.on("cuda", function()
      local function second(f)
        dm.manual_seed(5)
        local x, delta = dm.randn(2, 6, {requires_grad = true}), dm.randn(2, 6)
        local w, b = dm.rand(6, {requires_grad = true}), dm.zeros(6)
        local sum, y = f(x, delta, 6, w, b)
        local loss = (y:pow(3) + sum * y):sum()
        local g = dm.autograd.grad(loss, x, {create_graph = true})
        local gx, gw = dm.autograd.grad((g * g):sum(), {x, w})
        return dm.cat{gx:flatten(), gw}
      end
      assert.is_true(dm.allclose(second(apart), second(fused), {rtol = 1e-4, atol = 1e-4}))
    end)
  end)

  it("leaves other dtypes and shapes to the ops apart", function()
    both.on("cuda", function()
      for _, dtype in ipairs{"float64", "float16"} do
        local x, d = dm.randn(3, 8):to(dtype), dm.randn(8):to(dtype)
        local sum, y = dm.add_layer_norm(x, d, {8})
        assert.equal(both.bits(x + d), both.bits(sum))
        assert.equal(both.bits(dm.layer_norm(x + d, {8})), both.bits(y))
      end
    end)
  end)

  both.it_counts("takes one launch, and two backward", function()
    both.on("cuda", function()
      local function count(f)
        local from = dm.cuda._count "work"
        local y = f()
        return dm.cuda._count "work" - from, y
      end
      local x, w = dm.randn(4, 8, {requires_grad = true}), dm.ones(8, {requires_grad = true})
      local d, g = dm.randn(4, 8):bfloat16():requires_grad_(), dm.ones(4, 8):bfloat16()
      amp.autocast({dtype = "bfloat16"}, function()
        local n, y = count(function() return select(2, dm.add_layer_norm(x, d, {8}, w)) end)
        assert.equal(1, n)
        assert.equal("bfloat16", y.dtype)
        assert.equal(2, (count(function() return dm.autograd.grad(y, {x, d, w}, {g}) end)))
      end)
    end)
  end)

  it("is what GPT-2's blocks do, unless a hook looks", function()
    both.on("cuda", function()
      local function run(hooked)
        dm.manual_seed(1)
        local model, seen = dm.models.gpt2{n_layer = 2, n_embd = 16, n_head = 2, block_size = 8,
          vocab_size = 11, dropout = 0}, 0
        local blocks = model.transformer.h
        if hooked then
          for _, module in ipairs{blocks[1], blocks[2].ln_1, blocks[2].ln_2} do
            module:register_forward_hook(function() seen = seen + 1 end)
          end
        end
        local y = amp.autocast({dtype = "bfloat16"}, function()
          return model(dm.tensor{{1, 5, 2, 9}})
        end)
        y:float():sum():backward()
        return both.bits(y:detach()) .. both.bits(blocks[1].mlp.c_fc.weight.grad), seen
      end
      local plain, none = run(false)
      local hooked, seen = run(true)
      assert.equal(plain, hooked)
      assert.same({0, 3}, {none, seen})
    end)
  end)

  it("follows PyTorch's words where nothing is 16 bits", function()
    local norm = nn.LayerNorm(4)
    local x, d = dm.randn(2, 4, {device = "cpu"}), dm.randn(2, 4, {device = "cpu"})
    local sum, y = dm.add_layer_norm(x, d, {4},
      {weight = norm.weight:cpu(), bias = norm.bias:cpu()})
    assert.is_true(dm.equal(x + d, sum))
    assert.is_true(dm.equal(norm:to "cpu"(x + d), y))
  end)
end)
