-- Device parity: scaled_dot_product_attention on cuda gives the CPU's values and gradients, at
-- sizes that reach every branch of the kernels: partial tiles, heads of several tiles, loads of one
-- and of four elements, each kind of mask. Two runs give equal bits.
local dm = require "demilune"
local both = require "spec.cuda.both"
local folder = require "spec.folder"
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
    -- In 16 bits this is promised for deterministic algorithms only: cuDNN draws otherwise.
    local _ <close> = setmetatable({}, {__close = function()
      dm.use_deterministic_algorithms(false)
    end})
    dm.use_deterministic_algorithms(true)
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

-- In 16 bits by cuDNN; the emulation's answer is that of the graph which it was given.
describe("attention by cuDNN", function()
  setup(folder.make)
  teardown(folder.remove)
  before_each(function() os.execute("rm -rf " .. folder.path "cache") end)

  -- Counts of a program that attends: attend(dtype, sizes, how) runs on both devices, both
  -- ways, and compares; sizes are {..., L, S, E, D}. What CUDA gave goes to the second result.
  local function counts(environment, program)
    local results = folder.path "results"
    local n = both.counts(environment, ([[
      local file <close> = io.open(%q, "w")
      local GAP = {float32 = 1e-5, bfloat16 = 3e-2, float16 = 4e-3}
      local function attend(dtype, sizes, how)
        how = how or {}
        local batch = {table.unpack(sizes, 1, #sizes - 4)}
        local L, S, E, D = table.unpack(sizes, #sizes - 3)
        local function draw(rows, columns)
          local shape = {table.unpack(batch)}
          table.move({rows, columns}, 1, 2, #shape + 1, shape)
          return dm.randn(shape)
        end
        dm.manual_seed(1)
        local q, k, v, gy = draw(L, E), draw(S, E), draw(S, D), draw(L, D)
        local function run(device)
          local t = {q, k, v}
          for i = 1, 3 do t[i] = t[i]:to(dtype):to(device):detach():requires_grad_() end
          dm.manual_seed(1)
          local layout = how.layout or function(x) return x end
          local q, k, v = layout(t[1], 1), layout(t[2], 2), layout(t[3], 3)
          if how.gqa then k, v = k:narrow(2, 1, how.gqa), v:narrow(2, 1, how.gqa) end
          local y = dm.scaled_dot_product_attention(q, k, v, {
            is_causal = how.causal, dropout_p = how.dropout_p, scale = how.scale,
            attn_mask = how.mask and how.mask(L, S, dtype):to(device),
            enable_gqa = how.gqa ~= nil
          })
          if how.sum then y:sum():backward()
          else y:backward(gy:to(dtype):to(device):expand(y.shape)) end
          return {y:detach(), t[1].grad, t[2].grad, t[3].grad}
        end
        local want, got = run "cpu", run "cuda"
        for i, w in ipairs(want) do
          local g = got[i]:cpu()
          local gap = GAP[dtype] * (i == 1 and 1 or L ^ 0.5)
          local over = (w:double() - g:double()):abs() - gap * (1 + w:double():abs())
          assert(over:max():item() <= 0, dtype .. " result " .. i)
          for _, x in ipairs(g:double():flatten():totable()) do file:write(("%%a "):format(x)) end
        end
      end
      for _, dtype in ipairs{"float16", "bfloat16"} do
        %s
      end
    ]]):format(results, program))
    return n, folder.read "results"
  end
  local function own(n) return n.attention_kernel end
  local ALL = [[
    attend(dtype, {2, 3, 70, 133, 16, 16})
    attend(dtype, {2, 3, 70, 33, 8, 8}, {causal = true, scale = 0.3})
    attend(dtype, {2, 3, 33, 70, 24, 24}, {causal = true})
  ]]

  both.it_counts("runs forward and backward, causal or not, asked once for each kind", function()
    local n, first = counts("", ALL)
    assert.equal(12, n.cudnnBackendExecuteGraph)
    assert.equal(12, n.cudnnHeuristic)
    assert.equal(0, own(n))
    local again, second = counts("", ALL)
    assert.equal(0, again.cudnnHeuristic)
    assert.equal(12, again.cudnnPlanFromJson)
    assert.equal(12, again.cudnnBackendExecuteGraph)
    assert.equal(first, second)
  end)

  both.it_counts("has one plan for one kind, whatever the scale", function()
    local n = counts("", [[
      for _, scale in ipairs{0.1, 0.7} do attend(dtype, {1, 2, 9, 9, 8, 8}, {scale = scale}) end
    ]])
    assert.equal(8, n.cudnnBackendExecuteGraph)
    assert.equal(4, n.cudnnHeuristic)
  end)

  both.it_counts("takes fewer batch dims, and heads that lie side by side", function()
    local n = counts("", [[
      attend(dtype, {9, 17, 8, 8}, {causal = true})
      attend(dtype, {5, 9, 1, 128, 128})
      attend(dtype, {9, 17, 256, 256})
      attend(dtype, {1, 4, 9, 17, 8, 8}, {layout = function(x)
        return x:transpose(2, 3):contiguous():transpose(2, 3)
      end})
    ]])
    assert.equal(16, n.cudnnBackendExecuteGraph)
    assert.equal(0, own(n))
  end)

  both.it_counts("has another plan for gradients in a fixed order", function()
    local n = counts("", [[
      for _, mode in ipairs{false, true, false, true} do
        dm.use_deterministic_algorithms(mode)
        attend(dtype, {2, 3, 70, 33, 16, 16}, {causal = true})
      end
    ]])
    assert.equal(16, n.cudnnBackendExecuteGraph)
    assert.equal(6, n.cudnnHeuristic) -- a forward and two backwards in two dtypes
    assert.equal(0, own(n))
  end)

  -- Masks of (L, S), of more and of fewer dims, with rows that see no key.
  local MASKS = [[
    local MASKS = {
      function(L, S) return dm.randn(L, S):gt(-0.5) end,
      function(L, S)
        return dm.randn(L, S):gt(-0.5):logical_and(dm.arange(L):gt(4):unsqueeze(2))
      end,
      function(L, S) return dm.randn(2, 1, 1, S):gt(-0.5) end,
      function(L, S, dtype) return dm.randn(2, 1, L, S, {dtype = dtype}) end,
      function(L, S) return dm.randn(3, S, L):transpose(2, 3) end,
      function(L, S, dtype) return dm.full({L, S}, -math.huge, {dtype = dtype}):triu(6) end,
      function(L, S) return dm.full({L, S}, -math.huge):triu(-3) end,
      function(L) return dm.randn(L, 1, {dtype = "float64"}) end,
      function(L, S) return dm.randn(2, 3, L, S) end,
    }
  ]]
  both.it_counts("takes masks of every kind, one plan for those that repeat alike", function()
    local n = counts("", MASKS .. [[
      for _, mask in ipairs(MASKS) do attend(dtype, {2, 3, 9, 21, 8, 8}, {mask = mask}) end
    ]])
    assert.equal(36, n.cudnnBackendExecuteGraph)
    assert.equal(18, n.cudnnHeuristic) -- five shapes of a bias, four with rows in the gradients
    assert.equal(18, n.unseen_kernel)
    assert.equal(0, own(n))
  end)

  both.it_counts("draws dropout, and draws it again for the gradients", function()
    local n = counts("", MASKS .. [[
      for _ = 1, 2 do
        attend(dtype, {2, 3, 19, 33, 8, 8}, {dropout_p = 0.3, causal = true})
        attend(dtype, {2, 3, 9, 21, 8, 8}, {dropout_p = 0.5, mask = MASKS[2]})
      end
    ]])
    assert.equal(16, n.cudnnBackendExecuteGraph)
    assert.equal(8, n.cudnnHeuristic)
    assert.equal(0, own(n))
  end)

  both.it_counts("shares the heads of keys and values as they lie", function()
    local n = counts("", [[
      attend(dtype, {2, 6, 19, 33, 8, 8}, {gqa = 2, causal = true})
      attend(dtype, {2, 6, 19, 33, 8, 8}, {gqa = 1})
      attend(dtype, {2, 6, 9, 21, 8, 8}, {gqa = 3, dropout_p = 0.2,
        mask = function(L, S) return dm.randn(6, L, S):gt(-0.5) end})
      attend(dtype, {2, 6, 9, 21, 8, 8}, {gqa = 2, mask = function(L, S)
        return dm.randn(2, 1, L, S)
      end})
      attend(dtype, {2, 2, 9, 9, 8, 8}, {layout = function(x, i)
        return i == 1 and x or x:select(2, 1):unsqueeze(2):expand(x.shape)
      end})
    ]])
    assert.equal(20, n.cudnnBackendExecuteGraph)
    assert.equal(0, own(n))
  end)

  both.it_counts("copies what lies in a way that no engine takes", function()
    for what, call in pairs{
      ["columns apart"] = "{2, 2, 9, 9, 8, 8}, {layout = function(x)" ..
        " return x:transpose(3, 4):contiguous():transpose(3, 4) end}",
      ["an odd start"] = "{2, 2, 9, 9, 8, 8}, {layout = function(x) return" ..
        " dm.cat{x[{1, 1, 1, {1, 1}}], x:flatten()}:narrow(1, 2, x:numel()):view(x.shape) end}",
      ["one key for all"] = "{2, 2, 9, 9, 8, 8}, {layout = function(x, i) return i == 1 and x" ..
        " or x[{{1, 1}, {1, 1}}]:expand(x.shape) end}",
      ["five dims"] = "{1, 2, 2, 9, 9, 8, 8}",
      ["a sum's gradient"] = "{2, 2, 40, 40, 8, 8}, {causal = true, sum = true}",
    } do
      local n = counts("", "attend(dtype, " .. call .. ")")
      assert.equal(4, n.cudnnBackendExecuteGraph, what)
      assert.equal(0, own(n), what)
    end
  end)

  both.it_counts("leaves to our own kernels what it does not take", function()
    for what, call in pairs{
      ["odd heads"] = "{2, 2, 9, 9, 12, 12}", ["wide heads"] = "{1, 2, 9, 9, 264, 264}",
      ["other values"] = "{2, 2, 9, 9, 8, 16}",
      ["all dropped"] = "{2, 2, 9, 9, 8, 8}, {dropout_p = 1}",
    } do
      local n = counts("", "attend(dtype, " .. call .. ")")
      assert.equal(0, n.cudnnBackendExecuteGraph, what)
      assert.equal(8, own(n), what)
    end
    local n = counts("", [[attend("float32", {2, 2, 9, 9, 8, 8})]])
    assert.equal(0, n.cudnnBackendExecuteGraph)
    assert.equal(8, own(n))
  end)

  both.it_counts("has dropout drawn by our own kernels where that has to be repeated", function()
    local n = counts("", [[
      dm.use_deterministic_algorithms(true)
      attend(dtype, {2, 2, 9, 9, 8, 8}, {dropout_p = 0.3})
    ]])
    assert.equal(0, n.cudnnBackendExecuteGraph)
    assert.equal(8, own(n))
    n = counts("", [[
      local mask = dm.zeros{9, 9}:requires_grad_()
      attend(dtype, {2, 2, 9, 9, 8, 8}, {dropout_p = 0.3, mask = function() return mask end})
    ]])
    assert.equal(0, n.cudnnBackendExecuteGraph)
    counts("", [[
      local q = dm.randn(1, 2, 9, 8, {dtype = dtype, device = "cuda"}):requires_grad_()
      local y = dm.scaled_dot_product_attention(q, q, q, {dropout_p = 0.3})
      local ok, why = pcall(dm.autograd.grad, {y:sum()}, {q}, {create_graph = true})
      assert(not ok and tostring(why):find "no second derivatives on cuda:0; hint: use_determ", why)
    ]])
  end)

  both.it_counts("has one side draw for a size, whatever becomes of later calls", function()
    -- Without the backward's plan the forward does not begin; a failure after it is an error.
    local n = counts("DEMILUNE_EMULATED_CUDNN_REFUSES=cudnnPlan", [[
      attend(dtype, {2, 3, 9, 21, 8, 8}, {dropout_p = 0.5})
    ]])
    assert.equal(0, n.cudnnBackendExecuteGraph)
    assert.equal(8, own(n))
    counts("DEMILUNE_EMULATED_CUDNN_REFUSES=cudnnBackendExecute", [[
      local q = dm.randn(1, 2, 9, 8, {dtype = dtype, device = "cuda"})
      local ok, why = pcall(dm.scaled_dot_product_attention, q, q, q, {dropout_p = 0.3})
      assert(not ok and tostring(why):find "cuDNN fails, and nothing else can draw", why)
    ]])
  end)

  both.it_counts("leaves what it refuses to our own kernels, with the same results", function()
    local n, want = counts("DEMILUNE_CUDNN=0", ALL)
    assert.equal(24, own(n))
    for _, name in ipairs{"cudnnHeuristic", "cudnnPlan", "cudnnBackendExecute"} do
      os.execute("rm -rf " .. folder.path "cache")
      local refused, got = counts("DEMILUNE_EMULATED_CUDNN_REFUSES=" .. name, ALL)
      assert.equal(0, refused.cudnnBackendExecuteGraph, name)
      assert.equal(24, own(refused), name)
      assert.equal(want, got, name)
    end
  end)

  both.it_counts("moves MultiheadAttention's heads in their split's gradient alone", function()
    both.on("cuda", function()
      local model = dm.nn.MultiheadAttention(16, 2, {batch_first = true}):bfloat16()
      local x = dm.randn(2, 8, 16):bfloat16():requires_grad_()
      local function moves(f)
        local from, n = dm.cuda._count "work" + 1, 0
        f()
        for i = from, dm.cuda._count "work" do
          if dm.cuda._work(i):find("move_kernel", 1, true) then n = n + 1 end
        end
        return n
      end
      local y
      assert.equal(0, moves(function() y = model(x, x, x, {need_weights = false}) end))
      assert.equal(3, moves(function() y:backward(dm.ones_like(y)) end)) -- into the three parts
    end)
  end)
end)
