-- scaled_dot_product_attention on cuda against the CPU's, both ways, at sizes that take
-- every way through the kernels: tiles cut short, heads of several tiles, loads of one
-- element and of four, every kind of mask; the same bits twice; memory.
local dm = require "demilune"
local both = require "spec.cuda.both"
local sdpa = dm.scaled_dot_product_attention

local TOLERANCE = {float16 = 4e-3, bfloat16 = 3e-2, float32 = 2e-5, float64 = 1e-12}

if both.missing() then return end

-- Waves of a phase of their own: the same elements on every device.
local function wave(dtype, phase, ...)
  local size, n = {...}, 1
  for _, s in ipairs(size) do n = n * s end
  local t = dm.arange(n, {dtype = "float64", device = "cpu"})
  return ((t * 0.7 + phase):sin() + (t * 0.013):cos()):to(dtype):reshape(table.unpack(size))
    :to(dm.zeros(1).device):detach()
end

-- y and the gradients of what make() gives: query, key, value and options.
local function all_of(make)
  dm.manual_seed(3)
  local q, k, v, opts = make()
  for _, t in ipairs{q, k, v} do t:requires_grad_() end
  local y = sdpa(q, k, v, opts)
  y:backward(wave(y.dtype, 3, table.unpack(y.shape)))
  return {y:detach(), q.grad, k.grad, v.grad}
end

-- Gradients are sums of up to `terms` products.
local function compare(what, dtype, terms, make)
  local want, got = both.on("cpu", function() return all_of(make) end),
    both.on("cuda", function() return all_of(make) end)
  for i, name in ipairs{"y", "gq", "gk", "gv"} do
    both.near(("%s, %s, %s"):format(what, dtype, name), function(device)
      return device == "cpu" and want[i] or got[i]
    end, TOLERANCE[dtype] * (i == 1 and 1 or terms ^ 0.5))
  end
end

-- Queries (2, 3, L, E), keys and values (2, 3, S, E or D).
local function heads(dtype, L, S, E, D, opts)
  return function()
    return wave(dtype, 0, 2, 3, L, E), wave(dtype, 1, 2, 3, S, E), wave(dtype, 2, 2, 3, S, D),
      opts and opts(dtype) or {}
  end
end

local function causal() return {is_causal = true} end

describe("attention on cuda", function()
  it("cuts tiles short, in every float dtype", function()
    for _, dtype in ipairs(both.floats) do
      compare("70 queries, 133 keys", dtype, 70, heads(dtype, 70, 133, 20, 7))
      compare("causal", dtype, 70, heads(dtype, 133, 70, 8, 12, causal))
      compare("causal, more keys", dtype, 70, heads(dtype, 66, 200, 8, 8, causal))
    end
  end)

  it("takes heads of several tiles", function()
    for dtype, E in pairs{float32 = 132, bfloat16 = 68, float64 = 70} do
      compare("wide heads", dtype, 40, heads(dtype, 9, 40, E, E, causal))
      compare("wide queries", dtype, 40, heads(dtype, 9, 40, E, 3))
      compare("wide values", dtype, 40, heads(dtype, 9, 40, 3, E))
    end
  end)

  it("takes masks of every kind", function()
    local masks = {
      bool = function() return wave("float32", 1, 9, 80):gt(-0.5) end,
      ["bool that hides whole rows"] = function()
        return wave("float32", 1, 9, 80):gt(-0.5):logical_and(dm.arange(9):gt(4):unsqueeze(2))
      end,
      ["of each batch"] = function(dtype) return wave(dtype, 1, 2, 1, 1, 80) end,
      ["of each head, at strides"] = function()
        return wave("float32", 1, 3, 80, 9):transpose(2, 3)
      end,
      float16 = function() return wave("float16", 1, 9, 80) end,
      bfloat16 = function() return wave("bfloat16", 1, 9, 80) end,
      float64 = function() return wave("float64", 1, 9, 80) end,
      infinite = function(dtype) return dm.ones(9, 80, {dtype = dtype}):mul(-math.huge):triu(6) end,
    }
    for what, mask in pairs(masks) do
      for _, dtype in ipairs{"float32", "float64", "bfloat16"} do
        compare("mask " .. what, dtype, 80, heads(dtype, 9, 80, 8, 8, function()
          return {attn_mask = mask(dtype):detach(), scale = 0.4}
        end))
      end
    end
  end)

  it("shares heads, and takes them at strides", function()
    for _, dtype in ipairs{"float32", "float16"} do
      compare("groups", dtype, 200, function()
        return wave(dtype, 0, 2, 4, 70, 8), wave(dtype, 1, 2, 2, 65, 8),
          wave(dtype, 2, 2, 2, 65, 8), {enable_gqa = true, is_causal = true}
      end)
      compare("transposed", dtype, 70, function() -- as MultiheadAttention has them
        local q, k, v = table.unpack(wave(dtype, 0, 2, 70, 3 * 24):chunk(3, {dim = 3}))
        local function cut(t) return t:reshape(2, 70, 3, 8):transpose(2, 3):detach() end
        return cut(q), cut(k), cut(v), {is_causal = true}
      end)
      compare("columns apart", dtype, 40, function()
        local function turned(phase, n)
          return wave(dtype, phase, 2, 8, n):transpose(2, 3):detach()
        end
        return turned(0, 9), turned(1, 40), turned(2, 40), {}
      end)
      compare("one key for all", dtype, 400, function()
        return wave(dtype, 0, 2, 3, 9, 8), wave(dtype, 1, 1, 1, 40, 8), wave(dtype, 2, 2, 1, 40, 8)
      end)
    end
  end)

  it("drops what the CPU drops", function()
    for _, dtype in ipairs{"float32", "float64", "float16"} do
      for _, S in ipairs{80, 33, 70} do -- rows of the draw begin at any word of a counter
        compare("dropout over " .. S, dtype, 80, heads(dtype, 37, S, 8, 8, function()
          return {dropout_p = 0.3, is_causal = S == 33}
        end))
      end
    end
    compare("all dropped", "float32", 1, heads("float32", 3, 5, 4, 4, function()
      return {dropout_p = 1}
    end))
  end)

  it("takes nothing", function()
    compare("no keys", "float32", 1, heads("float32", 3, 0, 4, 4))
    compare("no queries", "float32", 1, heads("float32", 0, 3, 4, 4))
    compare("no values", "float32", 1, heads("float32", 3, 3, 4, 0))
    compare("no depth", "float32", 1, heads("float32", 3, 3, 0, 4, function()
      return {scale = 1}
    end))
    compare("no batch", "float32", 1, function()
      return dm.zeros(0, 3, 4), dm.zeros(0, 5, 4), dm.zeros(0, 5, 4), {}
    end)
  end)

  it("keeps NaN in its row", function()
    local found = both.on("cuda", function()
      return all_of(function()
        local q = wave("float32", 0, 70, 8)
        q[{66, 3}] = 0 / 0
        return q, wave("float32", 1, 80, 8), wave("float32", 2, 80, 8), {is_causal = true}
      end)
    end)
    for i = 1, 2 do -- y and gq
      local lost = found[i]:isnan():all(2):totable()
      for row = 1, 70 do assert.equal(row == 66, lost[row]) end
      assert.equal(8, found[i]:isnan():sum():item())
    end
    local keys = found[3]:isnan() -- key 67 is seen by none that is lost; 0 times NaN stays
    assert.equal(8, keys[66]:sum():item())
    assert.same({false, false, true}, {table.unpack(keys[67]:totable(), 1, 3)})
    assert.equal(1, keys[67]:sum():item())
  end)

  it("gives the same bits twice", function()
    local make = heads("float32", 130, 140, 12, 12, function()
      return {dropout_p = 0.2, is_causal = true}
    end)
    local first = both.on("cuda", function() return all_of(make) end)
    local second = both.on("cuda", function() return all_of(make) end)
    for i = 1, 4 do assert.equal(both.bits(first[i]), both.bits(second[i])) end
  end)

  it("takes memory in proportion to the context", function()
    local _ <close> = dm.device "cuda"
    local function peak(L)
      local q, k, v = wave("float32", 0, 1, L, 8), wave("float32", 1, 1, L, 8),
        wave("float32", 2, 1, L, 8)
      for _, t in ipairs{q, k, v} do t:requires_grad_() end
      collectgarbage()
      local before = dm.memory_allocated "cuda"
      dm.reset_peak_memory_stats "cuda"
      sdpa(q, k, v, {is_causal = true}):sum():backward()
      return dm.max_memory_allocated "cuda" - before
    end
    -- y, its gradient, three gradients; of 512 the weights alone would be 1 MiB
    assert.is_true(peak(512) <= 8 * 512 * 8 * 4)
    assert.is_true(peak(512) < 4.5 * peak(128))
  end)
end)
