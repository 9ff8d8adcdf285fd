-- Loss modules give the values of their functions and refuse bad arguments. ctc_loss takes lengths
-- as tables and handles impossible alignments. PyTorch's values are in spec/golden/loss.lua.

local dm = require "demilune"
require "spec.helper"
local nn, F = dm.nn, dm.nn.functional

local function refuses(pattern, fn, ...)
  local ok, message = pcall(fn, ...)
  assert.is_false(ok)
  assert.matches("^spec/loss_spec", message)
  assert.matches(pattern, message)
end

local function int(v) return dm.tensor(v, {dtype = "int64"}) end

-- Asserts that the module gives the value of the function.
local function agrees(module, name, ...)
  local args = table.pack(...)
  args[args.n + 1] = next(module._opts) and module._opts
  assert.is_true(module(...):equal(F[name](table.unpack(args))))
end

describe("losses as modules", function()
  local a, b, c = dm.rand(4, 3), dm.rand(4, 3), dm.rand(4, 3)
  local signs, labels = dm.tensor{1.0, -1.0, 1.0, -1.0}, int{2, 1, 3, 2}

  it("hold a linear layer of their own", function()
    local x, loss = dm.randn(4, 5), nn.LinearCrossEntropyLoss(5, 3, {reduction = "sum"})
    local weight, named = loss.linear.weight, {}
    for name in loss:named_parameters() do named[#named + 1] = name end
    assert.same({"linear.weight"}, named)
    assert.is_true(loss(x, labels):equal(F.cross_entropy(F.linear(x, weight), labels,
      {reduction = "sum"})))
    loss = nn.LinearCrossEntropyLoss(5, 3, {out_features = {2}, bias = true, label_smoothing = 0.1,
      weight = dm.tensor{1.0, 2.0, 3.0}})
    local logits = F.linear(x, loss.linear.weight, loss.linear.bias):view(4, 3, 2)
    local target = int{{1, 2}, {3, 1}, {2, 2}, {3, 3}}
    assert.is_true(loss(x, target):equal(F.cross_entropy(logits, target,
      {weight = loss.weight, label_smoothing = 0.1})))
    refuses("LinearCrossEntropyLoss: num_classes is missing", nn.LinearCrossEntropyLoss, 5)
    refuses("weight has shape {3}, wanted one for each class, {2}", nn.LinearCrossEntropyLoss, 5, 2,
      {weight = dm.ones(3)})
    refuses("label_smoothing is 2, wanted 0 to 1", nn.LinearCrossEntropyLoss, 5, 2,
      {label_smoothing = 2.0})
  end)

  it("agree with the functions", function()
    local w = dm.tensor{1.0, 2.0, 3.0}
    agrees(nn.KLDivLoss{reduction = "batchmean"}, "kl_div", a:log(), b)
    agrees(nn.PoissonNLLLoss{full = true}, "poisson_nll_loss", a, b)
    agrees(nn.GaussianNLLLoss{eps = 0.5}, "gaussian_nll_loss", a, b, c)
    agrees(nn.SoftMarginLoss(), "soft_margin_loss", a[{{}, 1}], signs)
    agrees(nn.MultiLabelSoftMarginLoss{weight = w}, "multilabel_soft_margin_loss", a, b)
    agrees(nn.MultiMarginLoss{p = 2, weight = w}, "multi_margin_loss", a, labels)
    agrees(nn.MultiLabelMarginLoss(), "multilabel_margin_loss", a[1], int{2, -1, 1})
    agrees(nn.HingeEmbeddingLoss{margin = 2}, "hinge_embedding_loss", a[{{}, 1}], signs)
    agrees(nn.MarginRankingLoss{margin = 1}, "margin_ranking_loss", a[{{}, 1}], b[{{}, 1}], signs)
    agrees(nn.CosineEmbeddingLoss{margin = 0.5}, "cosine_embedding_loss", a, b, signs)
    agrees(nn.TripletMarginLoss{swap = true}, "triplet_margin_loss", a, b, c)
    agrees(nn.CosineSimilarity(), "cosine_similarity", a, b)
    agrees(nn.PairwiseDistance{keepdim = true}, "pairwise_distance", a, b)
    agrees(nn.CrossEntropyLoss{label_smoothing = 0.1}, "cross_entropy", a, b)
    assert.matches("margin = 2, p = 1", tostring(nn.TripletMarginLoss{p = 1, margin = 2}))
    refuses("unknown option 'margn'; did you mean 'margin'", nn.TripletMarginLoss, {margn = 1})
  end)

  it("keep tensor options as buffers, which move with the module", function()
    local m = nn.MultiMarginLoss{weight = dm.tensor{1.0, 2.0, 3.0}}
    assert.equal(1, #m:buffers())
    assert.equal("float64", m:double()(a:double(), labels).dtype)
  end)

  it("leave labels of -100 out", function()
    for _, f in ipairs{F.cross_entropy, nn.CrossEntropyLoss(), F.nll_loss, nn.NLLLoss()} do
      local x = dm.randn(3, 4)
      assert.equal(f(dm.stack{x[1], x[3]}, int{1, 2}):item(), f(x, int{1, -100, 2}):item())
    end
    refuses("label %-99", function() return F.nll_loss(a, int{1, -99, 2, 1}):item() end)
    local seen = dm.metrics.Perplexity():update(dm.zeros(2, 4), int{1, -100})
    assert.near(4, seen:compute(), 1e-6)
  end)

  it("refuse shapes and numbers that do not fit", function()
    refuses("probabilities in x's shape; hint: y:long", F.cross_entropy, a, signs)
    refuses("ignore_index is for labels", F.cross_entropy, a, b, {ignore_index = 2})
    if a.device == "cpu" then -- other devices do not check
      refuses("gaussian_nll_loss: var has elements below 0", F.gaussian_nll_loss, a, b, -c)
    end
    refuses("gaussian_nll_loss: x has shape {4, 3}, var {2}", F.gaussian_nll_loss, a, b, dm.ones(2))
    refuses("multi_margin_loss: p is 3", F.multi_margin_loss, a, labels, {p = 3})
    refuses("multi_margin_loss: x has shape {4, 3}, the target {2}", F.multi_margin_loss, a,
      int{1, 2})
    refuses("multilabel_margin_loss: x has shape", F.multilabel_margin_loss, a, labels)
    refuses("cosine_embedding_loss: x1 has shape", F.cosine_embedding_loss, a, b, dm.tensor(1.0))
  end)
end)

-- Each loss of single elements with operands off its kinks, and options.
local function elementwise(dtype, rows, columns)
  rows, columns = rows or 4, columns or 5
  local function t(low, high) return dm.empty(rows, columns):uniform_(low, high):to(dtype) end
  local signs = (dm.arange(rows * columns):remainder(2) * 2 - 1):view(rows, columns):to(dtype)
  return {
    {"mse_loss", t(-1, 1), t(-1, 1)}, {"huber_loss", t(-1, 1), t(-1, 1), {delta = 0.4}},
    {"smooth_l1_loss", t(-1, 1), t(-1, 1), {beta = 0.4}},
    {"binary_cross_entropy", t(0.1, 0.9), t(0, 1)},
    {"binary_cross_entropy_with_logits", t(-3, 3), t(0, 1)},
    {"soft_margin_loss", t(-3, 3), signs}, {"multilabel_soft_margin_loss", t(-3, 3), t(0, 1)},
    {"kl_div", t(-2, 0), t(0.1, 1)}, {"kl_div", t(-2, 0), t(-2, 0), {log_target = true}},
    {"poisson_nll_loss", t(-1, 1), t(0, 3), {full = true}},
    {"poisson_nll_loss", t(0.5, 2), t(0, 3), {log_input = false}},
    {"gaussian_nll_loss", t(-1, 1), t(-1, 1), t(0.2, 1)},
    {"hinge_embedding_loss", t(-1, 0.4), signs, {margin = 0.5}},
    {"margin_ranking_loss", t(-1, 1), t(-1, 1), signs, {margin = 0.3}},
  }
end
-- The loss of a case, and its tensors, which want gradients unless they are labels.
local function leaves(case)
  local args, tensors = {table.unpack(case, 2)}, {}
  for i, v in ipairs(args) do
    if dm.is_tensor(v) then
      local label = i > 1 and v:abs():eq(1):all():item()
      args[i] = v:detach():clone():requires_grad_(not label)
      if not label then tensors[#tensors + 1] = args[i] end
    end
  end
  return F[case[1]](table.unpack(args)), tensors
end

describe("losses of single elements", function()
  it("have the gradients of one pass and of a graph alike", function()
    for _, case in ipairs(elementwise "float64") do
      local loss, tensors = leaves(case)
      local plain = dm.autograd.grad(loss, tensors, {retain_graph = true})
      local graph = dm.autograd.grad(loss, tensors, {create_graph = true})
      for i = 1, #tensors do
        assert.near(0, (plain[i] - graph[i]):abs():max():item(), 1e-14, case[1])
      end
    end
  end)

  it("round losses of 16 bits once, after their mean", function()
    for _, dtype in ipairs{"bfloat16", "float16"} do
      for _, case in ipairs(elementwise(dtype)) do
        local wide = {case[1]}
        for i = 2, #case do wide[i] = dm.is_tensor(case[i]) and case[i]:float() or case[i] end
        local loss, tensors = leaves(case)
        local exact, of = leaves(wide)
        assert.is_true(exact:to(dtype):equal(loss), case[1])
        loss:backward()
        exact:backward()
        for i, t in ipairs(tensors) do
          assert.equal(dtype, t.grad.dtype)
          local off = (t.grad:float() - of[i].grad):abs():max():item()
          assert.is_true(off <= dm.finfo(dtype).eps * of[i].grad:abs():max():item(), case[1])
        end
      end
    end
  end)

  it("have the means and sums of their elements, to the bit", function()
    local function turned(v) return dm.is_tensor(v) and v:t():contiguous():t() or v end
    for _, dtype in ipairs{"float32", "float64"} do
      for _, shape in ipairs{{1, 1}, {3, 1025}, {301, 700}} do
        for _, case in ipairs(elementwise(dtype, table.unpack(shape))) do
          local args = {table.unpack(case, 2)}
          local options = type(args[#args]) == "table" and table.remove(args) or {}
          local function by(reduction, change)
            local all, with = {}, {reduction = reduction}
            for k, v in pairs(options) do with[k] = v end
            for i, v in ipairs(args) do all[i] = change and change(v) or v end
            all[#all + 1] = with
            return F[case[1]](table.unpack(all))
          end
          local each = by "none"
          assert.is_true(each:mean():equal(by "mean"), case[1])
          assert.is_true(each:sum():equal(by "sum"), case[1])
          assert.near(each:mean():item(), by("mean", turned):item(), 1e-5 * each:abs():max():item())
        end
      end
    end
  end)

  it("have gradients of float64 where one operand is of float64", function()
    local x, t = dm.rand(6):double(), dm.rand(6)
    for _, args in ipairs{{"kl_div", x, t}, {"gaussian_nll_loss", x, t, 0.3}, {"mse_loss", x, t}} do
      local a = x:clone():requires_grad_()
      F[args[1]](a, table.unpack(args, 3)):backward()
      local b = x:clone():requires_grad_()
      F[args[1]](b, t:double(), args[4]):backward()
      assert.is_true(a.grad:equal(b.grad), args[1])
    end
  end)

  it("of labels take the predictions' dtype", function()
    local x, y = dm.randn(3):bfloat16(), dm.tensor{1.0, -1.0, 1.0}
    assert.equal("bfloat16", F.hinge_embedding_loss(x, y).dtype)
    assert.equal("float32", F.hinge_embedding_loss(x:float(), y:double()).dtype)
  end)

  it("add the gradients of repeated operands before they are rounded", function()
    for _, name in ipairs{"mse_loss", "binary_cross_entropy_with_logits", "soft_margin_loss"} do
      local x, y = dm.rand(64, 8):bfloat16(), dm.rand(8):bfloat16()
      local t, wide = y:clone():requires_grad_(), y:float():requires_grad_()
      F[name](x, t, {reduction = "sum"}):backward()
      F[name](x:float(), wide, {reduction = "sum"}):backward()
      assert.is_true(t.grad:equal(wide.grad:bfloat16()), name)
      local row, column = dm.rand(1, 64):bfloat16():requires_grad_(), y:detach():reshape(8, 1)
      wide = row:detach():float():requires_grad_()
      F[name](row, column, {reduction = "sum"}):backward()
      F[name](wide, column:float(), {reduction = "sum"}):backward()
      assert.is_true(row.grad:equal(wide.grad:bfloat16()), name)
    end
  end)

  it("are finite for predictions that are infinite and right", function()
    local x = dm.tensor({math.huge, -math.huge}, {requires_grad = true})
    local loss = F.soft_margin_loss(x, dm.tensor{1.0, -1.0})
    loss:backward()
    assert.equal(0, loss:item())
    assert.same({0, 0}, x.grad:abs():totable())
  end)

  it("refuse shapes that do not broadcast, by their own name", function()
    for name in ("mse_loss binary_cross_entropy soft_margin_loss kl_div poisson_nll_loss "
      .. "hinge_embedding_loss multilabel_soft_margin_loss"):gmatch "%S+" do
      refuses(name .. ": .*{4, 3}.*{4, 2}", F[name], dm.rand(4, 3), dm.rand(4, 2))
    end
  end)
end)

describe("cross_entropy of probabilities", function()
  it("is that of turned operands, in blocks or not, and of each row alone", function()
    for dtype, off in pairs{float64 = 1e-13, float32 = 2e-5, bfloat16 = 0.05, float16 = 0.01} do
      for _, classes in ipairs{7, 1030} do
        local x, t = (dm.randn(5, classes) * 4):to(dtype), dm.randn(5, classes):softmax(2):to(dtype)
        local function grads(change, options)
          local a, b = change(x):requires_grad_(), change(t):requires_grad_()
          local loss = F.cross_entropy(a, b, options)
          loss:sum():backward()
          return loss:detach(), a.grad, b.grad
        end
        for _, options in ipairs{{}, {reduction = "none"}, {label_smoothing = 0.2}} do
          local lies = {grads(function(v) return v:detach():clone() end, options)}
          local turned = {grads(function(v) return v:t():contiguous():t() end, options)}
          for i = 1, 3 do assert.near(0, (lies[i] - turned[i]):abs():max():item(), off) end
        end
        local rows = F.cross_entropy(x, t, {reduction = "none"})
        for i = 1, 5 do assert.is_true(rows[i]:equal(F.cross_entropy(x[i], t[i]))) end
      end
    end
  end)

  it("has second derivatives", function()
    local x, t = dm.randn(3, 4):double():requires_grad_(), dm.rand(3, 4):double():requires_grad_()
    assert.is_true(dm.autograd.gradcheck(F.cross_entropy, {x, t}))
    assert.is_true(dm.autograd.gradgradcheck(F.cross_entropy, {x, t}))
  end)
end)

describe("ctc_loss", function()
  local function logits() return dm.randn({6, 2, 5}, {requires_grad = true}) end
  local targets = int{{2, 3, 3}, {4, 2, 5}}

  it("takes lengths as tables, and one sequence without a batch", function()
    local x = dm.randn(6, 2, 5):log_softmax(-1)
    local want = dm.ctc_loss(x, targets, int{6, 5}, int{3, 2}, {reduction = "none"})
    assert.is_true(F.ctc_loss(x, targets, {6, 5}, {3, 2}, {reduction = "none"}):equal(want))
    local criterion = nn.CTCLoss{reduction = "none"}
    assert.is_true(criterion(x, targets, {6, 5}, {3, 2}):equal(want))
    local first = x[{{}, 1}]
    assert.is_true(criterion(first, targets[1], 6, 3):allclose(want[1]))
    assert.same({}, {table.unpack(criterion(first, targets[1], 6, 3).shape)})
  end)

  it("labels one after another are those in rows", function()
    local x = dm.randn(6, 2, 5):log_softmax(-1)
    local row = int{2, 3, 3, 4, 2}
    assert.is_true(F.ctc_loss(x, row, {6, 5}, {3, 2}):equal(F.ctc_loss(x, targets, {6, 5}, {3, 2})))
  end)

  it("adds up every way there is", function()
    -- two times, one label: label label, blank label, label blank
    local p = dm.tensor{{0.5, 0.3, 0.2}, {0.1, 0.6, 0.3}}
    local loss = F.ctc_loss(p:log(), int{2}, 2, 1, {reduction = "sum"})
    assert.is_true(math.abs(math.exp(-loss:item()) - (0.3 * 0.6 + 0.5 * 0.6 + 0.3 * 0.1)) < 1e-6)
  end)

  it("zero_infinity takes out what cannot be, with its gradient", function()
    local x = logits()
    local loss = F.ctc_loss(x:log_softmax(-1), targets, {3, 6}, {3, 3},
      {reduction = "none", zero_infinity = true})
    assert.equal(0, loss[1]:item()) -- 3 3 needs a blank between
    assert.is_true(loss[2]:item() > 0)
    loss:sum():backward()
    assert.is_true(x.grad:isfinite():all():item())
    assert.equal(0, x.grad[{{}, 1}]:abs():sum():item())
    local without = F.ctc_loss(x:log_softmax(-1), targets, {3, 6}, {3, 3}, {reduction = "none"})
    assert.equal(math.huge, without[1]:item())
  end)

  it("time after a sequence's end gets no gradient", function()
    local x = logits()
    F.ctc_loss(x:log_softmax(-1), targets, {6, 4}, {3, 2}):backward()
    assert.equal(0, x.grad[{{5, 6}, 2}]:abs():sum():item())
    assert.is_true(x.grad[{{5, 6}, 1}]:abs():sum():item() > 0)
  end)

  it("16 bits are computed in float32 and rounded once", function()
    for _, dtype in ipairs{"float16", "bfloat16"} do
      local x = dm.randn(6, 2, 5):log_softmax(-1):to(dtype):requires_grad_()
      local wide = x:detach():float():requires_grad_()
      local loss = F.ctc_loss(x, targets, {6, 5}, {3, 2}, {reduction = "none"})
      local want = F.ctc_loss(wide, targets, {6, 5}, {3, 2}, {reduction = "none"})
      assert.is_true(loss:equal(want:to(dtype)))
      loss:sum():backward()
      want:sum():backward()
      assert.is_true(x.grad:equal(wide.grad:to(dtype)))
    end
  end)

  it("learns to read", function()
    dm.manual_seed(3)
    local x = logits()
    local optimizer = dm.optim.Adam({x}, {lr = 0.3})
    local loss
    for _ = 1, 40 do
      optimizer:zero_grad()
      loss = F.ctc_loss(x:log_softmax(-1), targets, {6, 6}, {3, 3})
      loss:backward()
      optimizer:step()
    end
    assert.is_true(loss:item() < 0.1)
  end)

  it("refuses what does not fit", function()
    local x = dm.randn(6, 2, 5):log_softmax(-1)
    refuses("blank is 6, wanted a class, 1 to 5", F.ctc_loss, x, targets, {6, 6}, {3, 3},
      {blank = 6})
    refuses("input_lengths has shape {1}, wanted one for each of 2", F.ctc_loss, x, targets, {6},
      {3, 3})
    if x.device == "cpu" then -- other devices report it at the next wait
      refuses("input_lengths: 7 at position 2, wanted 0 to 6", F.ctc_loss, x, targets, {6, 7},
        {3, 3})
      refuses("target_lengths: 4 at position 1", F.ctc_loss, x, targets, {6, 6}, {4, 3})
      refuses("label 6 at position 3 is out of range 1 to 5", F.ctc_loss, x,
        int{{2, 3, 6}, {2, 2, 2}}, {6, 6}, {3, 3})
    end
    refuses("targets is float32", F.ctc_loss, x, dm.ones(2, 3), {6, 6}, {3, 3})
    refuses("log_probs is float32 of shape {6}", F.ctc_loss, dm.ones(6), targets, {6}, {3})
  end)
end)

describe("Huber losses", function()
  it("in their two parts, of integers, broadcast, NaN, far and at the bound", function()
    local inf, nan = math.huge, 0 / 0
    local d = {0, 0.5, -0.5, 2, -2, 3, -3, inf, -inf, nan}
    local near, far = {}, {}
    for i, v in ipairs(d) do
      local a = math.abs(v)
      near[i] = a < 2 and a * a / 4 or a - 1
      far[i] = a < 2 and a * a / 2 or 2 * (a - 1)
    end
    local function agree(wanted, y, what)
      for k, v in ipairs(wanted) do
        local got = y[k]:item()
        assert.is_true(got == v or (got ~= got and v ~= v), ("%s of element %d"):format(what, k))
      end
    end
    for _, dtype in ipairs{"float32", "float64", "float16"} do
      local x, t = dm.tensor(d):to(dtype):requires_grad_(), dm.zeros(#d):to(dtype)
      local smooth = dm.smooth_l1_loss(x, t, {reduction = "none", beta = 2})
      local huber = dm.huber_loss(x, t, {reduction = "none", delta = 2})
      agree(near, smooth, "smooth")
      agree(far, huber, "huber")
      local slope = {0, 0.5, -0.5, 2, -2, 2, -2, 2, -2, nan}
      for _, create_graph in ipairs{false, true} do
        local g = dm.autograd.grad(huber:sum(), x, {create_graph = create_graph,
          retain_graph = true})
        agree(slope, type(g) == "table" and g[1] or g, "slope")
      end
    end
    local whole = dm.huber_loss(dm.tensor{1, 5}:int(), dm.tensor{2, 9}:int(), {reduction = "none"})
    assert.equal("float32", whole.dtype)
    agree({0.5, 3.5}, whole, "integers")
    local x, t = dm.randn(5, 3):requires_grad_(), dm.randn(3):requires_grad_()
    dm.smooth_l1_loss(x, t):backward()
    assert.is_true(dm.allclose(x.grad:sum(1), -t.grad))
  end)
end)

describe("cross entropy of large logits", function()
  local device = require "spec.device"
  local ROWS, CLASSES = 48, 1000

  -- Logits (ROWS, CLASSES) as a product, so that they are no leaf, and what they are made of.
  local function parts()
    dm.manual_seed(7)
    return dm.randn(ROWS, 8, {requires_grad = true}), dm.randn(8, CLASSES, {requires_grad = true}),
      dm.randint(CLASSES, {ROWS})
  end

  it("reads 16 bits under autocast, with the results of a cast to float32", function()
    local options = {{}, {reduction = "sum", label_smoothing = 0.1}, {reduction = "none"},
      {weight = dm.rand(CLASSES)}}
    for _, o in ipairs(options) do
      for _, dtype in ipairs{device.low, device.another} do
        local function run(wide)
          local a, b, y = parts()
          local region = {device_type = device.type, dtype = dtype}
          local loss = dm.amp.autocast(region, function()
            local logits = a:mm(b)
            assert.equal(dtype, logits.dtype)
            return F.cross_entropy(wide and logits:float() or logits, y, o)
          end)
          assert.equal("float32", loss.dtype)
          local saved = dm.autograd.saved_memory(loss)
          local g = dm.full(loss.shape, o.reduction and 3.0 or 70000.0) -- beyond float16
          loss:backward(g)
          return {loss, a.grad, b.grad}, saved
        end
        local wanted, all = run(true)
        local got, half = run(false)
        for i = 1, 3 do -- elsewhere a thread reads more of them at once, and sums in another order
          assert.is_true(device.type == "cpu" and dm.equal(wanted[i], got[i])
            or dm.allclose(wanted[i], got[i], {rtol = 2^-6, atol = 1e-2}))
        end
        assert.equal(2 * ROWS * CLASSES, all.bytes - half.bytes)
      end
    end
  end)

  it("writes the gradient over logits that nobody holds", function()
    for _, dtype in ipairs{"float32", device.low} do
      local function peak(keep, options)
        local a, b, y = parts()
        local region = {device_type = device.type, dtype = device.low, enabled = dtype ~= "float32"}
        local logits, loss
        do
          local _ <close> = dm.amp.autocast(region)
          logits = a:mm(b)
          loss = F.cross_entropy(logits, y)
        end
        local before = logits:clone()
        if not keep then logits:free() end
        collectgarbage()
        collectgarbage()
        dm.reset_peak_memory_stats(device.type)
        local live = dm.memory_allocated(device.type)
        loss:backward(options)
        if keep then assert.is_true(dm.equal(before, logits)) end
        return dm.max_memory_allocated(device.type) - live, {a.grad, b.grad}
      end
      local most, wanted = peak(true)
      local least, got = peak(false)
      local retained, same = peak(false, {retain_graph = true})
      local bytes = ROWS * CLASSES * (dtype == "float32" and 4 or 2)
      assert.is_true(most - least >= bytes, ("%d of %d"):format(most - least, bytes))
      assert.is_true(retained - least >= bytes)
      for i = 1, 2 do
        assert.is_true(dm.equal(wanted[i], got[i]))
        assert.is_true(dm.equal(wanted[i], same[i]))
      end
    end
  end)

  it("keeps logits that another gradient reads, and has a second one", function()
    local a, b, y = parts()
    local function run(f)
      a.grad, b.grad = nil, nil
      f():backward()
      return {a.grad, b.grad}
    end
    local together = run(function()
      local logits = a:mm(b)
      local loss = F.cross_entropy(logits, y) + logits:square():mean()
      logits:free()
      return loss
    end)
    local first = run(function() return F.cross_entropy(a:mm(b), y) end)
    local second = run(function() return a:mm(b):square():mean() end)
    for i = 1, 2 do
      assert.is_true(dm.allclose(first[i] + second[i], together[i], {atol = 1e-6}))
    end
    local x = dm.randn(3, 5, {dtype = "float64", requires_grad = true})
    local two = dm.tensor{1, 5, 2}
    assert.is_true(dm.autograd.gradgradcheck(function(v)
      return F.cross_entropy(v * v, two, {label_smoothing = 0.2})
    end, {x}))
  end)

  it("has second gradients without rounding of 16-bit weights of classes", function()
    local low = dm.tensor({1.04, 0.0656, 1.274, 0.0892}, {dtype = device.low})
    local y = dm.tensor{2, 1, 4}
    local function second(weight)
      local x = dm.linspace(-1, 1, 12):reshape(3, 4):requires_grad_()
      local loss = F.cross_entropy(x, y, {label_smoothing = 0.1, weight = weight})
      local g = dm.autograd.grad(loss, {x}, {create_graph = true})
      return dm.autograd.grad(g:square():sum(), {x})
    end
    assert.is_true(dm.equal(second(low:float()), second(low)))
  end)

  it("leaves a leaf as it is", function()
    local _, _, y = parts()
    local x = dm.randn(ROWS, CLASSES, {requires_grad = true})
    local before = x:detach():clone()
    F.cross_entropy(x, y):backward()
    assert.is_true(dm.equal(before, x))
  end)
end)

describe("multilabel_margin_loss", function()
  -- The loss of a row of numbers by the pairs of its labels and of other classes, and its gradient.
  local function by_pairs(x, labels)
    local n, own, is, loss, gradient = #x, {}, {}, 0, {}
    for i = 1, n do gradient[i] = 0 end
    for _, label in ipairs(labels) do
      if label < 0 then break end
      own[#own + 1], is[label] = label, true
    end
    for _, label in ipairs(own) do
      for i = 1, n do
        local z = 1 - x[label] + x[i]
        if not is[i] and z > 0 then
          loss = loss + z / n
          gradient[i] = gradient[i] + 1 / n
          gradient[label] = gradient[label] - 1 / n
        end
      end
    end
    return loss, gradient
  end

  it("equals the sum over pairs, with repeated labels, all labels, and none", function()
    dm.manual_seed(1)
    for _, labels in ipairs{{3, 1, 3, -1, 2, 2}, {-1, 1, 1, 1, 1, 1}, {6, 5, 4, 3, 2, 1},
        {2, -1, 3, 4, 1, 1}} do
      local x = dm.randn(6, {dtype = "float64", requires_grad = true})
      local loss = F.multilabel_margin_loss(x, int(labels))
      loss:backward()
      local wanted, gradient = by_pairs(x:detach():tolist(), labels)
      assert.near(wanted, loss:item(), 1e-12)
      for i = 1, 6 do assert.near(gradient[i], x.grad[i]:item(), 1e-12) end
    end
  end)

  it("needs memory for the classes, not for their pairs", function()
    local N, C <const> = 16, 512
    local x = dm.randn(N, C, {requires_grad = true})
    local labels = dm.arange(1, C):expand(N, C):clone()
    labels[{{}, C // 2}] = -1
    dm.reset_peak_memory_stats(x.device)
    local before = dm.max_memory_allocated(x.device)
    F.multilabel_margin_loss(x, labels):backward()
    assert.is_true(dm.max_memory_allocated(x.device) - before < 200 * 4 * N * C) -- of pairs: C / 2
  end)
end)
