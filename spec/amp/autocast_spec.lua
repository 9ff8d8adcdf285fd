-- Autocast runs each op in the dtype of PyTorch's op lists: results and gradients have the bits of
-- explicit casts. The spec also checks regions, their state per coroutine, and the cache of casts.

local dm = require "demilune"
local case = require "spec.case"
local device = require "spec.device"
local warnings_of = require "spec.warnings"
local amp, nn = dm.amp, dm.nn

-- Those of the device that the spec does not run on are tried by rules = "cuda" or "cpu".
local LISTS = require "spec.amp.lists"

-- Ops of the lists that the engine does not have by name; x[i] = v is its index_put.
local ABSENT = {}
for name in ([[conv_tbc chain_matmul frobenius_norm nuclear_norm
  polar cholesky inverse
  reflection_pad1d replication_pad1d linalg_eig qr]]):gmatch "%S+" do
  ABSENT[name] = true
end

local LP = {"bfloat16", "float16"}

-- ---- inputs ----

-- x(lo, hi, shape...): uniform in [lo, hi), in the dtype, a leaf.
local function source(dtype)
  return function(lo, hi, ...)
    return (dm.rand(...) * (hi - lo) + lo):to(dtype):detach():requires_grad_()
  end
end

local function labels(...) return dm.tensor({...}, {dtype = "int64"}) end
local function index() return dm.tensor({{1, 2, 1}, {2, 1, 2}}, {dtype = "int64"}) end

-- The calls, by op: functions from a source to the arguments. `other` gives the
-- second operand's dtype where the operands may differ.
local CALLS = {
  conv2d = function(x) return x(-1, 1, 2, 3, 5, 5), x(-1, 1, 4, 3, 3, 3), x(-1, 1, 4) end,
  conv1d = function(x) return x(-1, 1, 2, 3, 5), x(-1, 1, 4, 3, 3), x(-1, 1, 4) end,
  conv3d = function(x) return x(-1, 1, 1, 2, 3, 3, 3), x(-1, 1, 4, 2, 2, 2, 2) end,
  conv_transpose1d = function(x) return x(-1, 1, 2, 3, 5), x(-1, 1, 3, 4, 3), x(-1, 1, 4) end,
  conv_transpose2d = function(x) return x(-1, 1, 2, 3, 5, 5), x(-1, 1, 3, 4, 3, 3) end,
  conv_transpose3d = function(x) return x(-1, 1, 1, 2, 3, 3, 3), x(-1, 1, 2, 3, 2, 2, 2) end,
  max_unpool2d = function(x)
    return x(-1, 1, 1, 2, 2), labels(1, 8, 15, 10):reshape(1, 2, 2), 2
  end,
  max_unpool3d = function(x)
    return x(-1, 1, 1, 1, 2, 2), labels(1, 8, 15, 10):reshape(1, 1, 2, 2), 2
  end,
  avg_pool3d = function(x) return x(-1, 1, 1, 2, 4, 4, 4), 2 end,
  max_pool3d = function(x) return x(-1, 1, 1, 2, 4, 4, 4), 2 end,
  adaptive_avg_pool3d = function(x) return x(-1, 1, 1, 2, 4, 4, 4), 2 end,
  interpolate = function(x) return x(-1, 1, 1, 2, 4, 4), {6, 7} end,
  addmm = function(x) return x(-1, 1, 4, 5), x(-1, 1, 4, 3), x(-1, 1, 3, 5) end,
  baddbmm = function(x) return x(-1, 1, 2, 4, 5), x(-1, 1, 2, 4, 3), x(-1, 1, 2, 3, 5) end,
  matmul = function(x) return x(-1, 1, 8, 8), x(-1, 1, 8, 8) end,
  mm = function(x) return x(-1, 1, 8, 8), x(-1, 1, 8, 8) end,
  bmm = function(x) return x(-1, 1, 2, 4, 3), x(-1, 1, 2, 3, 5) end,
  mv = function(x) return x(-1, 1, 8, 8), x(-1, 1, 8) end,
  linear = function(x) return x(-1, 1, 4, 8), x(-1, 1, 8, 8), x(-1, 1, 8) end,
  einsum = function(x) return "ij,jk->ik", x(-1, 1, 8, 8), x(-1, 1, 8, 8) end,
  lstm_cell = function(x)
    return x(-1, 1, 3, 5), x(-1, 1, 3, 4), x(-1, 1, 3, 4), x(-1, 1, 16, 5), x(-1, 1, 16, 4),
      x(-1, 1, 16), x(-1, 1, 16)
  end,
  gru_cell = function(x)
    return x(-1, 1, 3, 5), x(-1, 1, 3, 4), x(-1, 1, 12, 5), x(-1, 1, 12, 4), x(-1, 1, 12),
      x(-1, 1, 12)
  end,
  rnn_layer = function(x) -- one time step: no gradient is summed
    return x(-1, 1, 1, 3, 5), x(-1, 1, 12, 5), x(-1, 1, 12, 4), "gru"
  end,
  scaled_dot_product_attention = function(x)
    return x(-1, 1, 2, 5, 4), x(-1, 1, 2, 6, 4), x(-1, 1, 2, 6, 3), x(-1, 1, 5, 6)
  end,
  acos = function(x) return x(-0.9, 0.9, 8) end,
  asin = function(x) return x(-0.9, 0.9, 8) end,
  log = function(x) return x(0.1, 100, 8) end,
  log2 = function(x) return x(0.1, 100, 8) end,
  log10 = function(x) return x(0.1, 100, 8) end,
  log1p = function(x) return x(-0.9, 100, 8) end,
  rsqrt = function(x) return x(0.1, 100, 8) end,
  reciprocal = function(x) return x(0.5, 4, 8) end,
  tan = function(x) return x(-1.5, 1.5, 8) end,
  pow = function(x) return x(0.1, 4, 8), x(-1, 2, 8) end,
  layer_norm = function(x) return x(-1, 1, 4, 8), {8}, x(-1, 1, 8), x(-1, 1, 8) end,
  group_norm = function(x) return x(-1, 1, 2, 4, 3), 2, x(-1, 1, 4), x(-1, 1, 4) end,
  nll_loss = function(x) return x(-3, 0, 4, 3), labels(1, 3, 2, 1) end,
  cross_entropy = function(x) return x(-3, 3, 4, 3), labels(1, 3, 2, 1) end,
  l1_loss = function(x) return x(-1, 1, 8), x(-1, 1, 8) end,
  smooth_l1_loss = function(x) return x(-2, 2, 8), x(-2, 2, 8) end,
  huber_loss = function(x) return x(-2, 2, 8), x(-2, 2, 8) end,
  mse_loss = function(x) return x(-1, 1, 8), x(-1, 1, 8) end,
  binary_cross_entropy = function(x) return x(0.1, 0.9, 8), x(0.1, 0.9, 8) end,
  binary_cross_entropy_with_logits = function(x) return x(-3, 3, 8), x(0, 1, 8) end,
  logsumexp = function(x) return x(-3, 3, 4, 8), 2 end,
  softmax = function(x) return x(-3, 3, 8, 8), 1 end,
  log_softmax = function(x) return x(-3, 3, 8, 8), 1 end,
  softmin = function(x) return x(-3, 3, 8, 8), 1 end,
  sum_to_size = function(x) return x(-1, 1, 4, 8), {1, 8} end,
  trapezoid = function(x) return x(-1, 1, 4, 8) end,
  local_response_norm = function(x) return x(-1, 1, 2, 4, 3, 3), 3 end,
  multilabel_soft_margin_loss = function(x) return x(-1, 1, 4, 8), x(0, 1, 4, 8) end,
  pairwise_distance = function(x) return x(-1, 1, 4, 8), x(-1, 1, 4, 8) end,
  cumsum = function(x) return x(-1, 1, 8, 8), 1 end,
  cumprod = function(x) return x(0.5, 1.5, 8, 8), 1 end,
  tensordot = function(x, other) return x(-1, 1, 2, 3, 4), other(-1, 1, 3, 4, 2) end,
  sum = function(x) return x(-1, 1, 8, 8), 2 end,
  prod = function(x) return x(0.5, 1.5, 8, 3), 1 end,
  norm = function(x) return x(-1, 1, 8, 8) end,
  addcmul = function(x, other) return x(-1, 1, 8), other(-1, 1, 8), x(-1, 1, 8) end,
  addcdiv = function(x, other) return x(-1, 1, 8), other(-1, 1, 8), x(0.5, 1, 8) end,
  atan2 = function(x, other) return x(0.1, 1, 8), other(0.1, 1, 8) end,
  dot = function(x, other) return x(-1, 1, 8), other(-1, 1, 8) end,
  scatter_add = function(x, other) return x(-1, 1, 2, 3), 1, index(), other(-1, 1, 2, 3) end,
  index_copy = function(x, other) return x(-1, 1, 4, 3), 1, labels(3, 1), other(-1, 1, 2, 3) end,
  cat = function(x, other) return {x(-1, 1, 2, 3), other(-1, 1, 1, 3)} end,
  stack = function(x, other) return {x(-1, 1, 2, 3), other(-1, 1, 2, 3)} end,
}
for name in ("rnn_tanh_cell rnn_relu_cell"):gmatch "%S+" do
  CALLS[name] = function(x)
    return x(-1, 1, 3, 5), x(-1, 1, 3, 4), x(-1, 1, 4, 5), x(-1, 1, 4, 4), x(-1, 1, 4)
  end
end
CALLS.rms_norm = function(x) return x(-1, 1, 4, 8), {8}, x(-1, 1, 8) end
CALLS.bilinear = function(x, other)
  return x(-1, 1, 4, 3), other(-1, 1, 4, 2), x(-1, 1, 5, 3, 2), other(-1, 1, 5)
end
CALLS.prelu = function(x) return x(-1, 1, 2, 3, 2), x(0.1, 0.5, 3) end
CALLS.erfinv = function(x) return x(-0.9, 0.9, 8) end
CALLS.trace = function(x) return x(-1, 1, 4, 4) end
CALLS.cdist = function(x) return x(-1, 1, 4, 3), x(-1, 1, 5, 3) end
CALLS.cosine_similarity = function(x) return x(-1, 1, 4, 8), x(-1, 1, 4, 8) end
CALLS.kl_div = function(x) return x(-3, -1, 4, 8), x(0, 1, 4, 8) end
CALLS.poisson_nll_loss = function(x) return x(-1, 1, 8), x(0, 3, 8) end
CALLS.multi_margin_loss = function(x) return x(-1, 1, 4, 3), labels(1, 3, 2, 1) end
CALLS.multilabel_margin_loss = function(x) return x(-1, 1, 4), labels(3, 1, -1, 2) end
CALLS.triplet_margin_loss = function(x) return x(-1, 1, 4, 3), x(-1, 1, 4, 3), x(-1, 1, 4, 3) end
for name in ("soft_margin_loss hinge_embedding_loss"):gmatch "%S+" do
  CALLS[name] = function(x) return x(-1, 1, 4), labels(1, -1, 1, -1) end
end
CALLS.margin_ranking_loss = function(x) return x(-1, 1, 4), x(-1, 1, 4), labels(1, -1, 1, -1) end
CALLS.cosine_embedding_loss = function(x)
  return x(-1, 1, 4, 3), x(-1, 1, 4, 3), labels(1, -1, 1, -1)
end
CALLS.ctc_loss = function(x)
  return x(-3, -1, 5, 2, 4), labels(2, 3, 2), labels(5, 4), labels(2, 1)
end
CALLS.pinverse = function(x) return x(-1, 1, 4, 3) end
CALLS.addmv = function(x) return x(-1, 1, 4), x(-1, 1, 4, 3), x(-1, 1, 3) end
CALLS.addr = function(x) return x(-1, 1, 4, 3), x(-1, 1, 4), x(-1, 1, 3) end
CALLS.addbmm = function(x) return x(-1, 1, 4, 5), x(-1, 1, 2, 4, 3), x(-1, 1, 2, 3, 5) end
CALLS.vdot = function(x, other) return x(-1, 1, 8), other(-1, 1, 8) end
CALLS.dist = function(x) return x(-1, 1, 8), x(-1, 1, 8) end
CALLS.pdist = function(x) return x(-1, 1, 4, 3) end
for _, name in ipairs{"quantile", "nanquantile"} do
  CALLS[name] = function(x) return x(-1, 1, 8), 0.3 end
end
CALLS.renorm = function(x) return x(-1, 1, 4, 8), 2, 1, 1 end
CALLS.adaptive_max_pool3d = function(x) return x(-1, 1, 1, 2, 4, 4, 4), 2 end
CALLS.fractional_max_pool2d = function(x)
  return x(-1, 1, 1, 2, 5, 5), dm.full({1, 2, 2}, 0.5), 2, {3, 3}
end
CALLS.grid_sample = function(x, other)
  return x(-1, 1, 1, 2, 3, 3), (other or x)(-1, 1, 1, 2, 2, 2)
end
for name in ("cosh exp expm1 sinh softplus square"):gmatch "%S+" do
  CALLS[name] = function(x) return x(-2, 2, 8) end
end

CALLS.linalg_vecdot = function(x) return x(-1, 1, 4, 8), x(-1, 1, 4, 8) end
CALLS.linalg_multi_dot = function(x) return {x(-1, 1, 3, 4), x(-1, 1, 4, 2), x(-1, 1, 2, 3)} end
CALLS.cross = function(x, other) return x(-1, 1, 4, 3), other(-1, 1, 4, 3), 2 end
CALLS.linalg_cholesky = function(x) return x(0.5, 1, 3, 1, 1) end
CALLS.cholesky_solve = function(x) return x(-1, 1, 3, 2), x(0.5, 1, 3, 3) end
CALLS.linalg_solve = function(x) return x(-1, 1, 3, 3), x(-1, 1, 3, 2) end
CALLS.triangular_solve = function(x) return x(-1, 1, 3, 2), x(0.5, 1, 3, 3) end
CALLS.linalg_lstsq = function(x) return x(-1, 1, 4, 2), x(-1, 1, 4, 3) end
for name in ([[linalg_vector_norm linalg_matrix_norm linalg_cond linalg_svdvals linalg_eigvalsh
  linalg_eigh linalg_inv linalg_qr linalg_svd cholesky_inverse svd]]):gmatch "%S+" do
  CALLS[name] = function(x) return x(0.5, 1, 3, 3) end
end
CALLS.stft = function(x) return x(-1, 1, 2, 16), 8 end
for _, dims in ipairs{"", "2", "n"} do
  for name in ("fft_fft fft_ifft fft_rfft fft_irfft"):gmatch "%S+" do
    CALLS[name .. dims] = function(x) return x(-1, 1, 3, 4, 2) end
  end
end

-- ---- the comparison with casts by hand ----

local function map(f, v)
  if type(v) ~= "table" then return f(v) end
  local out = {}
  for i, item in ipairs(v) do out[i] = map(f, item) end
  return out
end

local function cast_to(dtype)
  return function(v)
    local fits = dm.is_tensor(v) and v:is_floating_point() and v.dtype ~= "float64"
    return fits and v:to(dtype) or v
  end
end

local function leaves_of(args)
  local out = {}
  for i = 1, args.n do
    map(function(v) if dm.is_tensor(v) and v.requires_grad then out[#out + 1] = v end end, args[i])
  end
  return out
end

local function same(a, b, what)
  assert.equal(b.dtype, a.dtype, what)
  assert.same({table.unpack(b.shape)}, {table.unpack(a.shape)}, what)
  local x, y = case.values(a), case.values(b)
  for i = 1, #y do
    if x[i] ~= y[i] and (x[i] == x[i] or y[i] == y[i]) then
      error(("%s: element %d is %.17g, by hand %.17g"):format(what, i, x[i], y[i]), 0)
    end
  end
end

-- Runs the op on arguments of (dtype, other) inside the region and, with casts to
-- `to` (or that dtype asked for), outside: results and gradients have equal bits.
local function matches_hand(region, op, dtype, other, to, set_dtype)
  local what = ("%s(%s, %s) in %s"):format(op, dtype, other, region.dtype)
  local function arguments()
    dm.manual_seed(7)
    local args = table.pack(CALLS[op](source(dtype), source(other)))
    return args, leaves_of(args)
  end
  local args, leaves = arguments()
  local y = amp.autocast(region, function() return dm[op](table.unpack(args, 1, args.n)) end)
  local by_hand, hand_leaves = arguments()
  if set_dtype then
    by_hand.n = by_hand.n + 1
    by_hand[by_hand.n] = {dtype = to}
  else
    for i = 1, by_hand.n do by_hand[i] = map(cast_to(to), by_hand[i]) end
  end
  local z = dm[op](table.unpack(by_hand, 1, by_hand.n))
  assert.equal(to, y.dtype, what)
  same(y, z, what)
  dm.manual_seed(8)
  local gy = dm.randn_like(y.data)
  y:backward(gy)
  z:backward(gy)
  for i, leaf in ipairs(leaves) do same(leaf.grad, hand_leaves[i].grad, what .. ": gradient") end
  -- As a method it is the same op.
  if type(args[1]) == "userdata" then
    local again = amp.autocast(region, function()
      return args[1][op](table.unpack(args, 1, args.n))
    end)
    same(again, y, what .. " as a method")
  end
end

-- Ops without a gradient, and one that draws numbers.
local NO_CALL = {linalg_matrix_rank = true, geqrf = true, gumbel_softmax = true}

local function each(rules, word, check)
  for name in LISTS[rules][word]:gmatch "%S+" do
    if not ABSENT[name] and not NO_CALL[name] then
      assert(CALLS[name], name .. " has no call in this spec")
      for _, lp in ipairs(LP) do check(name, lp) end
    end
  end
end

local function line() return debug.getinfo(2, "l").currentline end
local function is_on() return amp.is_autocast_enabled(device.type) end
local function ones(...) return dm.ones(...) end
local function leaf(...) return dm.ones(...):requires_grad_() end

describe("the op tables", function()
  for kind, lists in pairs(LISTS) do
    it("are PyTorch's for every op on " .. kind, function()
      local want = {}
      for word, names in pairs(lists) do
        for name in names:gmatch "%S+" do want[name] = word end
      end
      local words = amp.op_table(kind)
      for name, word in pairs(words) do assert.equal(want[name] or "unlisted", word, name) end
      for name in pairs(want) do assert.equal(ABSENT[name] == nil, words[name] ~= nil, name) end
    end)
  end

  it("leave what the CPU's do not list, in whole", function()
    local m, v, w = dm.randn(3, 4), dm.randn(4), dm.randn(3)
    local wide = {dm.addmv(w, m, v), dm.addr(m, w, v)}
    for _, lp in ipairs(LP) do
      local got = amp.autocast({device_type = "cpu", dtype = lp}, function()
        return {dm.addmv(w, m, v), dm.addr(m, w, v)}
      end)
      for i, y in ipairs(got) do same(y, wide[i], "addmv, addr in " .. lp) end
    end
  end)

  it("end linalg.pinv in a product, and pinverse in float32", function()
    local m = dm.randn(3, 4, {device = "cpu"})
    for _, lp in ipairs(LP) do
      amp.autocast({device_type = "cpu", dtype = lp}, function()
        same(dm.linalg.pinv(m), dm.pinverse(m):to(lp), "pinv in " .. lp)
        assert.equal("float32", dm.pinverse(m).dtype)
      end)
    end
  end)

  it("give float32 for each result of svd and triangular_solve", function()
    local h = dm.tensor({{2, 0.5}, {-0.5, 3}}, {dtype = "bfloat16"})
    local _ <close> = amp.autocast(device.region("cpu", "bfloat16"))
    local results = {dm.svd(h)}
    table.move({dm.svd(h, {compute_uv = false})}, 1, 3, 4, results)
    table.move({dm.triangular_solve(h, h)}, 1, 2, 7, results)
    for i = 1, 8 do assert.equal("float32", results[i].dtype) end
    amp.autocast({policy = {linalg_svd = "unlisted"}}, function()
      assert.equal("bfloat16", (dm.svd(h, {compute_uv = false})).dtype)
    end)
    assert.equal("fp32", amp.op_table("cpu").svd)
    assert.equal("unlisted", amp.op_table("cuda").svd)
  end)

  it("are what help prints", function()
    local print_, lines = print, {}
    _G.print = function(text) lines[#lines + 1] = text end
    local ok, text = pcall(dm.help, "softmax")
    _G.print = print_
    assert(ok, text)
    assert.matches("CPU: unlisted", lines[1])
    assert.matches("CUDA: fp32_set_opt_dtype", lines[1])
    lines = {}
    _G.print = function(printed) lines[#lines + 1] = printed end
    ok = pcall(dm.help, "svd")
    _G.print = print_
    assert.is_true(ok)
    assert.matches("autocast: as linalg_svd", lines[1])
  end)

  it("CUDA's 16-bit list equals casts by hand", function()
    each("cuda", "lower_precision_fp", function(op, lp)
      matches_hand(device.region("cuda", lp), op, "float32", "float32", lp)
    end)
  end)

  it("CUDA's float32 list equals casts by hand", function()
    each("cuda", "fp32", function(op, lp)
      matches_hand(device.region("cuda", lp), op, lp, lp, "float32")
    end)
  end)

  it("CUDA's ops with a dtype give float32 and read 16 bits", function()
    each("cuda", "fp32_set_opt_dtype", function(op, lp)
      matches_hand(device.region("cuda", lp), op, lp, lp, "float32", true)
    end)
    for _, lp in ipairs(LP) do
      local _ <close> = amp.autocast(device.region("cuda", lp))
      local h = dm.rand(4, 4):to(lp)
      for _, p in ipairs{1, 2} do
        assert.equal("float32", h:norm(p).dtype)
        assert.equal("float32", h:norm(p, 1).dtype)
      end
      assert.equal(lp, h:norm(2, {dtype = lp}).dtype)
      assert.equal("float32", h:sum().dtype)
      assert.equal("float32", h:prod().dtype)
      assert.equal("float32", nn.functional.gumbel_softmax(h).dtype)
      assert.equal("int64", dm.ones(3, {dtype = "int64"}):sum().dtype)
    end
  end)

  it("CUDA's promote list widens, whichever operand is the wider", function()
    each("cuda", "promote", function(op, lp)
      matches_hand(device.region("cuda", lp), op, "float32", lp, "float32")
      matches_hand(device.region("cuda", lp), op, lp, "float32", "float32")
    end)
  end)

  it("the CPU's 16-bit list equals casts by hand", function()
    each("cpu", "lower_precision_fp", function(op, lp)
      matches_hand(device.region("cpu", lp), op, "float32", "float32", lp)
    end)
  end)

  it("the CPU's float32 list equals casts by hand", function()
    each("cpu", "fp32", function(op, lp)
      matches_hand(device.region("cpu", lp), op, lp, lp, "float32")
    end)
  end)

  it("the CPU's promote list widens", function()
    each("cpu", "promote", function(op, lp)
      matches_hand(device.region("cpu", lp), op, "float32", lp, "float32")
      matches_hand(device.region("cpu", lp), op, lp, "float32", "float32")
    end)
  end)

  it("promote does not depend on the order of arguments", function()
    for _, lp in ipairs(LP) do
      local region = device.region("cpu", lp)
      for _, pair in ipairs{{"float16", "float32"}, {"bfloat16", "float32"},
        {"float16", "bfloat16"}} do
        matches_hand(region, "cat", pair[1], pair[2], "float32")
        matches_hand(region, "cat", pair[2], pair[1], "float32")
      end
      -- an operand of the dtype is not cast
      matches_hand(region, "cat", "float16", "float16", "float16")
      matches_hand(region, "cat", "bfloat16", "bfloat16", "bfloat16")
    end
  end)

  it("linear with a bias", function()
    for _, lp in ipairs(LP) do
      local y = amp.autocast({dtype = lp}, function()
        return dm.linear(ones(2, 8), ones(4, 8), ones(4))
      end)
      assert.equal(lp, y.dtype)
      assert.equal(9, y[{1, 1}]:item())
    end
  end)

  it("comparisons, arithmetic and joins of float32 and 16 bits", function()
    for _, lp in ipairs(LP) do
      for _, rules in ipairs{"cpu", "cuda"} do
        local _ <close> = amp.autocast{dtype = lp, rules = rules}
        local a, b = ones(3), ones(3):to(lp)
        for name in ("eq ge gt le lt ne"):gmatch "%S+" do
          assert.equal("bool", dm[name](a, b).dtype)
        end
        for name in ("add sub mul div"):gmatch "%S+" do
          assert.equal("float32", dm[name](a, b).dtype)
          assert.equal(lp, dm[name](b, b).dtype)
        end
        assert.equal("float32", dm.cat{b, a}.dtype)
        assert.equal("float32", dm.stack{b, a}.dtype)
      end
    end
  end)

  it("binary cross-entropy is refused by CUDA's rules and float32 by the CPU's", function()
    local p = dm.rand(4)
    assert.refuses("unsafe under autocast.*_with_logits", function()
      amp.autocast(device.region "cuda", function() return dm.binary_cross_entropy(p, p) end)
    end)
    amp.autocast(device.region "cuda", function()
      assert.equal("float32", amp.autocast({enabled = false}, function()
        return dm.binary_cross_entropy(p, p)
      end).dtype)
    end)
    assert.equal("float32", amp.autocast(device.region "cpu", function()
      return dm.binary_cross_entropy(p:to "bfloat16", p)
    end).dtype)
  end)

  it("powers, and a number over a tensor, by CUDA's rules", function()
    for _, lp in ipairs(LP) do
      local h = (dm.rand(4) + 1):to(lp)
      local _ <close> = amp.autocast(device.region("cuda", lp))
      assert.equal("float32", h:pow(1.5).dtype)
      assert.equal("float32", (h ^ 1.5).dtype)
      assert.equal("float32", (2 ^ h).dtype)
      assert.equal("float32", (1 / h).dtype)
      assert.equal(lp, (h / 2).dtype)
      assert.equal(lp, (2 // h).dtype)
      assert.equal("float32", h:square().dtype)
    end
  end)
end)

describe("regions", function()
  it("the dtypes of old", function()
    assert.equal("float16", amp.get_autocast_dtype "cuda")
    assert.equal("bfloat16", amp.get_autocast_dtype "cpu")
    assert.is_true(amp.is_autocast_available "cpu")
    assert.is_true(amp.is_autocast_available "cuda")
    assert.refuses("unknown device 'tpu'", function() amp.is_autocast_available "tpu" end)
  end)

  it("on, off inside, on again, off after", function()
    assert.is_false(is_on())
    do
      local _ <close> = amp.autocast()
      assert.is_true(is_on())
      do
        local _ <close> = amp.autocast{enabled = false}
        assert.is_false(is_on())
      end
      assert.is_true(is_on())
    end
    assert.is_false(is_on())
  end)

  it("take the dtype of the region around", function()
    amp.autocast({dtype = device.another}, function()
      local y = amp.autocast({}, function() return dm.mm(ones(1, 1), ones(1, 1)) end)
      assert.equal(device.another, y.dtype)
    end)
    assert.equal(device.low, amp.get_autocast_dtype(device.type))
  end)

  it("may be named by the device first", function()
    local y = amp.autocast(device.type, {dtype = device.another}, function()
      return dm.mm(ones(1, 1), ones(1, 1))
    end)
    assert.equal(device.another, y.dtype)
    do
      local _ <close> = amp.autocast(device.type)
      assert.is_true(is_on())
    end
    assert.equal(amp.autocast, dm.cuda.amp.autocast)
  end)

  it("give equal results one after the other", function()
    local x, w = dm.randn(8, 8), dm.randn(8, 8)
    for _, lp in ipairs(LP) do
      local y = {}
      for i = 1, 2 do y[i] = amp.autocast({dtype = lp}, function() return dm.mm(x, w) end) end
      same(y[1], y[2], "mm")
    end
  end)

  it("have an op's policy in each form of the op", function()
    local m, v = dm.randn(2, 3), dm.randn(3)
    local forms = {
      clamp = function() return dm.clamp(m, v, v + 1) end,
      cross_entropy = function() return dm.cross_entropy(m, m:softmax(-1)) end,
      linear = function() return dm.linear(m, v) end,
      norm = function() return dm.norm(m, "nuc") end,
      repeat_interleave = function() return dm.repeat_interleave(m, labels(2, 1), {dim = 1}) end,
      scatter = function() return dm.scatter(m, 2, index(), m, {reduce = "add"}) end,
    }
    for name, call in pairs(forms) do
      call()
      amp.autocast({policy = {[name] = "banned"}}, function()
        assert.refuses("banned by this autocast region", call)
      end)
      local y = amp.autocast({dtype = "float16", policy = {[name] = "lower_precision"}}, call)
      assert.equal("float16", y.dtype, name)
    end
  end)

  it("refuse what is no device, and other nonsense, at the caller's line", function()
    for pattern, opts in pairs{
      ["unknown device 'not a real device'"] = {device_type = "not a real device"},
      ["device_type is a number, wanted a string"] = {device_type = 3},
      ["unknown option 'dtyp'; did you mean 'dtype'"] = {dtyp = "float16"},
      ["dtype is 'int64'"] = {dtype = "int64"},
      ["enabled is 0, wanted true or false"] = {enabled = 0},
      ["no op 'softmaxx'; did you mean 'softmax'"] = {policy = {softmaxx = "fp32"}},
      ["unknown policy 'promot' of softmax; did you mean 'promote'"] =
        {policy = {softmax = "promot"}},
      ["unknown policy 'fp64' of softmax, wanted lower_precision"] = {policy = {softmax = "fp64"}},
      ["relu has no option dtype"] = {policy = {relu = "fp32_set_opt_dtype"}},
      ["zeros takes no tensor"] = {policy = {zeros = "fp32"}},
      ["policy is a string"] = {policy = "fp32"},
      ["unknown device 'gpu'"] = {rules = "gpu"},
    } do
      local ok, text = pcall(function() amp.autocast(opts) end)
      assert.is_false(ok)
      assert.matches("autocast_spec%.lua:%d+: ", text)
      assert(text:find(pattern, 1, true), text)
      assert.is_false(is_on())
    end
    assert.refuses("device_type is a number", function() amp.autocast(3) end)
  end)

  it("wrap a function only", function()
    assert.refuses("wanted a function, got userdata.*<close>", function()
      amp.autocast():wrap(ones(2))
    end)
    assert.refuses("wanted a function", function() amp.autocast({}, ones(2)) end)
    collectgarbage()
    assert.is_false(is_on())
  end)

  it("float32 on the CPU is silent when off, warns and is off when on", function()
    local function float32(enabled)
      amp.autocast("cpu", {dtype = "float32", enabled = enabled}, function()
        assert.is_false(amp.is_autocast_enabled "cpu")
      end)
    end
    assert.same({}, warnings_of(function() float32(false) end))
    local texts = warnings_of(function() for _ = 1, 2 do float32(true) end end)
    assert.equal(1, #texts)
    assert.matches("autocast_spec%.lua:%d+: warning: autocast: dtype is float32", texts[1])
  end)

  if device.type == "cpu" then -- of the process: spec/helper.lua hides what GPUs there are
    it("without CUDA a CUDA region warns and is off", function()
      local y
      local texts = warnings_of(function()
        y = amp.autocast("cuda", function() return dm.mm(ones(2, 2), ones(2, 2)) end)
      end)
      assert.equal(1, #texts)
      assert.equal("float32", y.dtype)
    end)
  end

  it("restore the state after an error, which goes on", function()
    local thrown = {}
    for _, fn in ipairs{
      function() local _ <close> = amp.autocast() error(thrown) end,
      function() amp.autocast({}, function() error(thrown) end) end,
      amp.autocast():wrap(function() error(thrown) end),
    } do
      local ok, got = pcall(fn)
      assert.is_false(ok)
      assert.equal(thrown, got)
      assert.is_false(is_on())
    end
  end)

  it("wrap gives arguments and results through", function()
    local mm = amp.autocast{dtype = "float16"}:wrap(function(...) return dm.mm(...), nil, 3 end)
    assert.is_false(is_on())
    local y, none, three = mm(ones(2, 2), ones(2, 2))
    assert.equal("float16", y.dtype)
    assert.is_nil(none)
    assert.equal(3, three)
    assert.is_false(is_on())
  end)

  it("a product and a sum", function()
    local x, y = dm.randn(1024, 1), dm.randn(1024, 1)
    for _, lp in ipairs(LP) do
      local _ <close> = amp.autocast{dtype = lp}
      local p = dm.matmul(x, y:t())
      assert.same({1024, 1024}, {table.unpack(p.shape)})
      assert.equal(lp, p.dtype)
      assert.equal("float32", (x + y).dtype)
    end
  end)

  it("off inside on; and after the region", function()
    local a = dm.randn(4, 4)
    for _, lp in ipairs(LP) do
      local e
      do
        local _ <close> = amp.autocast{dtype = lp}
        e = dm.mm(a, a)
        local f
        do
          local _ <close> = amp.autocast{enabled = false}
          assert.refuses("must have one dtype", function() dm.mm(a, e) end)
          f = dm.mm(a, e:float())
        end
        assert.equal("float32", f.dtype)
        assert.equal(lp, dm.mm(a, f).dtype)
      end
      assert.refuses("must have one dtype", function() dm.mm(a, e) end)
      assert.equal("float32", dm.mm(a, e:float()).dtype)
      assert.is_true(rawequal(a, a:float()))
    end
  end)

  it("a wrapped function may call itself, and be wrapped twice", function()
    local region = amp.autocast{dtype = "float16"}
    local f
    f = region:wrap(function(n)
      assert.is_true(is_on())
      if n > 0 then f(n - 1) end
      assert.is_true(is_on())
    end)
    f(3)
    assert.is_false(is_on())
    region:wrap(region:wrap(function() assert.is_true(is_on()) end))()
    assert.is_false(is_on())
    do
      local _ <close> = region:reopen()
      do local _ <close> = region:reopen() end
      assert.is_true(is_on())
    end
    assert.is_false(is_on())
  end)

  it("may be closed in any order, and twice", function()
    local outer = amp.autocast{dtype = "float16"}
    local middle = amp.autocast{enabled = false, cache_enabled = false}
    local inner = amp.autocast{dtype = "bfloat16", enabled = true}
    outer:close()
    assert.is_true(is_on())
    assert.equal("bfloat16", amp.get_autocast_dtype(device.type))
    inner:close()
    inner:close()
    assert.is_false(is_on())
    middle:close()
    assert.is_false(is_on())
    assert.equal(device.low, amp.get_autocast_dtype(device.type))
    assert.is_true(amp.is_autocast_cache_enabled())
  end)

  it("print what they are", function()
    local r <close> = amp.autocast{dtype = "float16"}
    assert.equal(("autocast(%s, float16, on)"):format(device.type), tostring(r))
  end)

  it("that are forgotten end when they are collected, and name their line", function()
    local at
    local function forget()
      for _ = 1, 2 do
        at = line() + 1
        amp.autocast{dtype = "float16"}
      end
    end
    local texts = warnings_of(function()
      forget()
      collectgarbage()
      collectgarbage()
    end)
    assert.is_false(is_on())
    assert.equal(1, #texts)
    assert.matches("autocast_spec%.lua:" .. at .. ": warning: autocast: this region was never",
      texts[1])
  end)

  it("around backward() and step() are warned of, once for each line", function()
    local p = leaf(2, 2)
    local opt = dm.optim.SGD({p}, {lr = 1})
    local first
    local texts = warnings_of(function()
      for _ = 1, 2 do
        local _ <close> = amp.autocast()
        first = line() + 1
        dm.mm(p, p):sum():backward()
        opt:step()
        amp.autocast({enabled = false}, function() opt:step() end)
      end
      dm.mm(p, p):sum():backward()
      opt:step()
    end)
    assert.equal(2, #texts)
    assert.matches("autocast_spec%.lua:" .. first .. ": warning: backward: called while", texts[1])
    assert.matches("autocast_spec%.lua:" .. first + 1 .. ": warning: step: called while", texts[2])
  end)

  it("an explicit dtype wins, and float64 is left alone", function()
    for _, lp in ipairs(LP) do
      local _ <close> = amp.autocast{dtype = lp}
      local d, f, h = dm.ones(2, 2, {dtype = "float64"}), ones(2, 2), ones(2, 2):to(lp)
      assert.equal("float64", h:sum{dtype = "float64"}.dtype)
      assert.equal("float64", dm.mm(d, d).dtype)
      assert.equal("float64", dm.linear(d, d).dtype)
      assert.equal("float64", dm.cat{d, f}.dtype)
      assert.equal("float64", dm.cat{d, h}.dtype)
      assert.refuses("must have one dtype", function() dm.mm(d, f) end)
    end
  end)

  it("the other 16-bit dtype is converted too", function()
    for i, lp in ipairs(LP) do
      local _ <close> = amp.autocast{dtype = lp}
      assert.equal(lp, dm.mm(ones(2, 2):to(LP[3 - i]), ones(2, 2)).dtype)
    end
  end)

  it("what works in place is not converted", function()
    for _, lp in ipairs(LP) do
      local _ <close> = amp.autocast{dtype = lp}
      local a, h = ones(2, 2), ones(2, 2):to(lp)
      amp.autocast({rules = "cuda"}, function()
        assert.equal(lp, h:clone():exp_().dtype)
        assert.equal(lp, h:clone():addcmul_(a, a).dtype)
      end)
      assert.equal(lp, h:clone():add_(a).dtype)
      assert.equal("float32", a:clone():add_(h).dtype)
      local c = dm.zeros(2, 2)
      assert.equal("float32", c:addmm_(a, a).dtype)
      assert.same({{2, 2}, {2, 2}}, c:totable())
      assert.refuses("addmm", function() c:addmm_(a, h) end)
      -- nor does a result's destination decide: there is no out =
      assert.refuses("mm: unknown option 'out'", function() dm.mm(a, a, {out = c}) end)
      assert.equal(lp, dm.mm(a, a).dtype)
      assert.equal("float32", c:copy_(dm.mm(a, a)).dtype)
    end
    local x = dm.tensor{1.2345678} -- exp_ has a kernel, rad2deg_ is made of another op
    for _, word in ipairs{"lower_precision_fp", "banned"} do
      for name in pairs{exp = true, rad2deg = true, mul = true} do
        local want = name == "mul" and x * x or x[name](x)
        local _ <close> = amp.autocast{policy = {[name] = word}}
        local y = x:clone()
        y = name == "mul" and y:mul_(y) or y[name .. "_"](y)
        assert.equal(want:item(), y:item())
      end
    end
  end)

  it("one that is off changes nothing", function()
    local model, x = nn.Sequential{nn.Linear(8, 8), nn.GELU(), nn.LayerNorm{8}}, dm.randn(4, 8)
    local plain = model(x)
    same(amp.autocast({enabled = false, rules = "cuda"}, function() return model(x) end), plain,
      "off")
  end)

  it("CPU tensors have nothing to do with CUDA's switch", function()
    finally(function() amp.set_autocast_enabled("cuda", false) end)
    amp.set_autocast_enabled("cuda", true)
    local _ <close> = dm.device "cpu"
    local a = ones(1)
    local c, m = dm.cat{a, a}, dm.mm(ones(2, 2), ones(2, 2))
    local s = dm.stack{c, c}
    assert.same({2}, {table.unpack(c.shape)})
    assert.same({2, 2}, {table.unpack(s.shape)})
    assert.equal("float32", m.dtype)
  end)

  if device.type == "cuda" then -- with tensors on both devices
    it("each device type has its own switch, dtype and rules", function()
      local cpu = {device = "cpu"}
      local a, h = dm.ones(2, 2, cpu), dm.ones(2, {device = "cpu", dtype = "bfloat16"})
      local b, g = dm.ones(2, 2), dm.ones(2, {dtype = "float16"})
      local function dtypes()
        return {dm.mm(a, a).dtype, h:softmax(1).dtype, dm.mm(b, b).dtype, g:softmax(1).dtype}
      end
      assert.same({"float32", "bfloat16", "float32", "float16"}, dtypes())
      amp.autocast("cuda", {dtype = "float16"}, function()
        assert.same({"float32", "bfloat16", "float16", "float32"}, dtypes())
        amp.autocast("cpu", function()
          assert.same({"bfloat16", "bfloat16", "float16", "float32"}, dtypes())
          amp.autocast("cuda", {enabled = false}, function()
            assert.same({"bfloat16", "bfloat16", "float32", "float16"}, dtypes())
          end)
        end)
        assert.same({"float32", "bfloat16", "float16", "float32"}, dtypes())
      end)
    end)

    it("float32 is a dtype of a CUDA region", function()
      assert.same({}, warnings_of(function()
        local _ <close> = amp.autocast{dtype = "float32"}
        assert.is_true(is_on())
        local h = ones(2, 2):to "float16"
        assert.equal("float32", dm.mm(h, h).dtype)
      end))
    end)
  end
end)

describe("policies of a region's own", function()
  it("change single ops, by short words and long", function()
    local a, h = dm.randn(4, 4), dm.randn(4, 4):to(device.low)
    local _ <close> = amp.autocast{policy = {softmax = "lower_precision", layer_norm = "fp32",
      relu = "float32", mm = "unlisted", add = "promote", exp = "banned",
      sum = "fp32_set_opt_dtype", tanh = "lower_precision_fp"}}
    assert.equal(device.low, a:softmax(1).dtype)
    assert.equal(device.low, a:tanh().dtype)
    assert.equal("float32", dm.layer_norm(h, {4}).dtype)
    assert.equal("float32", h:relu().dtype)
    assert.equal("float32", dm.mm(a, a).dtype)
    assert.equal(device.low, dm.mm(h, h).dtype)
    assert.equal("float32", (h + h:to(device.another)).dtype)
    assert.equal("float32", h:sum().dtype)
    assert.equal(device.low, h:sum{dtype = device.low}.dtype)
    assert.refuses("exp: banned by this autocast region", function() a:exp() end)
    assert.equal(device.low, dm.bmm(a[{}]:unsqueeze(1), a:unsqueeze(1)).dtype)
  end)

  it("are inherited, added to, and gone after", function()
    local a = dm.randn(4, 4)
    do
      local _ <close> = amp.autocast{policy = {exp = "lower_precision"}}
      do
        local _ <close> = amp.autocast{policy = {log = "lower_precision"}}
        assert.equal(device.low, a:exp().dtype)
        assert.equal(device.low, a:log().dtype)
        local _ <close> = amp.autocast{dtype = device.another, policy = {exp = "unlisted"}}
        assert.equal("float32", a:exp().dtype)
        assert.equal(device.another, a:log().dtype)
        -- rules begins anew
        local _ <close> = amp.autocast{rules = "cpu"}
        assert.equal("float32", a:log().dtype)
      end
      assert.equal(device.low, a:exp().dtype)
      assert.equal("float32", a:log().dtype)
    end
    assert.equal("float32", amp.autocast({}, function() return a:exp() end).dtype)
  end)

  it("outlive their region in what began inside", function()
    local a = dm.randn(4)
    local co, state
    do
      local _ <close> = amp.autocast{policy = {exp = "lower_precision"}}
      co = coroutine.wrap(function()
        while true do coroutine.yield(a:exp().dtype) end
      end)
      assert.equal(device.low, co())
      state = dm.autocast_state()
    end
    collectgarbage()
    assert.equal(device.low, co())
    assert.equal("float32", a:exp().dtype)
    local _ <close> = dm.autocast_resume(state)
    assert.equal(device.low, a:exp().dtype)
  end)

  it("of the other device rule by an option", function()
    local h = dm.rand(4, 4):to "float16"
    local function dtypes() return {h:softmax(1).dtype, dm.mv(ones(2, 2), ones(2)).dtype} end
    local by = {cpu = {"float16", "float32"}, cuda = {"float32", device.low}}
    assert.same(by[device.type], amp.autocast({}, dtypes))
    local _ <close> = amp.autocast{rules = device.other}
    assert.same(by[device.other], dtypes())
    do -- an op that the region itself runs
      local word = device.other == "cuda" and "unlisted" or "fp32"
      local _ <close> = amp.autocast{policy = {softmax = word}}
      assert.same({by[device.type][1], by[device.other][2]}, dtypes())
    end
  end)
end)

describe("coroutines", function()
  it("keep a region to themselves across yields", function()
    local co = coroutine.wrap(function()
      local _ <close> = amp.autocast()
      for _ = 1, 3 do coroutine.yield(is_on()) end
      return "done"
    end)
    for _ = 1, 3 do
      assert.is_true(co())
      assert.is_false(is_on())
    end
    assert.equal("done", co())
    assert.is_false(is_on())
  end)

  it("start with the state of their starter, whoever called the library last", function()
    local function state() return is_on() end
    do
      local _ <close> = amp.autocast()
      assert.is_true(coroutine.wrap(state)())
    end
    local inside = coroutine.wrap(function()
      local _ <close> = amp.autocast()
      coroutine.yield()
      return coroutine.wrap(function()
        return coroutine.wrap(state)()
      end)()
    end)
    inside()
    -- `inside` called last, but it waits: it is not the one that starts this
    assert.is_false(coroutine.wrap(state)())
    inside()
    -- nor is one that yielded to its starter, which starts another
    local outer = coroutine.wrap(function()
      local _ <close> = amp.autocast{dtype = "float16"}
      local other = coroutine.wrap(function()
        local _ <close> = amp.autocast{enabled = false}
        coroutine.yield()
      end)
      other()
      local got = coroutine.wrap(state)()
      other()
      return got
    end)
    assert.is_true(outer())
    assert.is_false(is_on())
  end)

  it("may resume one another in a circle", function()
    local a, b
    a = coroutine.create(function()
      is_on()
      coroutine.resume(b)
      coroutine.yield()
      is_on()
      coroutine.yield()
    end)
    b = coroutine.create(function()
      is_on()
      coroutine.yield()
      coroutine.resume(a)
    end)
    coroutine.resume(a)
    coroutine.resume(b)
    assert.is_false(is_on())
  end)

  it("closed inside a region end it", function()
    local co = coroutine.create(function()
      local _ <close> = amp.autocast()
      coroutine.yield()
    end)
    coroutine.resume(co)
    assert.is_true(coroutine.close(co))
    assert.is_false(is_on())
  end)

  it("may yield in all three forms", function()
    local co = coroutine.wrap(function()
      amp.autocast({}, function() coroutine.yield(is_on()) end)
      amp.autocast():wrap(function() coroutine.yield(is_on()) end)()
      return is_on()
    end)
    assert.is_true(co())
    assert.is_true(co())
    assert.is_false(co())
  end)
end)

describe("the state", function()
  it("has PyTorch's setters", function()
    local type_ = device.type
    finally(function()
      amp.set_autocast_enabled(type_, false)
      amp.set_autocast_dtype(type_, device.low)
      amp.set_autocast_cache_enabled(true)
    end)
    amp.set_autocast_enabled(true)
    assert.is_true(amp.is_autocast_enabled())
    amp.set_autocast_enabled(type_, false)
    assert.is_false(amp.is_autocast_enabled())
    amp.set_autocast_dtype(type_, device.another)
    assert.equal(device.another, amp.get_autocast_dtype(type_))
    amp.set_autocast_dtype(type_, device.low)
    assert.refuses("wanted float16 or bfloat16", function()
      amp.set_autocast_dtype("cpu", "int8")
    end)
    assert.refuses("did you mean 'bfloat16'", function()
      amp.set_autocast_dtype("cpu", "bfloat1")
    end)
    assert.refuses("unknown device", function() amp.set_autocast_enabled("tpu", true) end)
    assert.refuses("boolean expected", function() amp.set_autocast_enabled("cpu", 1) end)
    amp.set_autocast_cache_enabled(false)
    assert.is_false(amp.is_autocast_cache_enabled())
    amp.set_autocast_cache_enabled(true)
    amp.clear_autocast_cache()
  end)
end)

describe("the cast cache", function()
  local x, w
  before_each(function()
    x, w = dm.ones(1, 2):to(device.low), leaf(2, 2)
  end)

  local function casts(fn)
    local before = amp.cast_count()
    fn()
    return amp.cast_count() - before
  end
  local function use() return dm.mm(x, w) end

  it("counts of casts of one weight", function()
    local cases = {
      {1, "two uses", function() amp.autocast({}, function() use() use() end) end},
      {2, "cache off", function()
        amp.autocast({cache_enabled = false}, function() use() use() end)
      end},
      {2, "two regions", function() for _ = 1, 2 do amp.autocast({}, use) end end},
      {1, "nested", function()
        amp.autocast({}, function() use() amp.autocast({}, use) end)
      end},
      {1, "disabled in between", function()
        amp.autocast({}, function()
          use()
          amp.autocast({enabled = false}, function() dm.mm(w, w) end)
          use()
        end)
      end},
      {1, "disabled around two regions", function()
        amp.autocast({enabled = false}, function()
          amp.autocast({enabled = true}, use)
          amp.autocast({enabled = true}, use)
        end)
      end},
      {2, "cleared in between", function()
        amp.autocast({}, function() use() amp.clear_autocast_cache() use() end)
      end},
      {2, "a frozen weight", function()
        w:requires_grad_(false)
        amp.autocast({}, function() use() use() end)
      end},
    }
    for _, c in ipairs(cases) do assert.equal(c[1], casts(c[3]), c[2]) end
  end)

  it("is not filled outside of regions, where nobody would empty it", function()
    finally(function() amp.set_autocast_enabled(device.type, false) end)
    amp.set_autocast_enabled(device.type, true)
    assert.equal(2, casts(function() use() use() end))
  end)

  it("a gradient that opens a region of its own finds the cast", function()
    local Linear = dm.autograd.Function{
      forward = function(ctx, a, b)
        ctx:save_for_backward(a, b)
        return dm.linear(a, b)
      end,
      backward = function(ctx, gy)
        local a, b = ctx:saved_tensors()
        local _ <close> = amp.autocast()
        return dm.mm(gy, b), dm.mm(gy:t(), a)
      end,
    }
    local data, weight = dm.randn(2, 3):to(device.low), dm.randn(4, 3):requires_grad_()
    local function run(cache)
      weight.grad = nil
      -- open around both, as closing the last region empties the cache
      local outer <close> = amp.autocast{enabled = false, cache_enabled = cache}
      local n = casts(function()
        local y = amp.autocast({enabled = true}, function() return Linear(data, weight) end)
        assert.equal(device.low, y.dtype)
        y:sum():backward()
      end)
      assert.equal("float32", weight.grad.dtype)
      return n, outer
    end
    assert.equal(1, (run(true)))
    assert.equal(2, (run(false)))
  end)

  it("a change in place is seen at once", function()
    local ones3, weight = dm.ones(1, 3), leaf(1, 3)
    local function value() return dm.linear(ones3, weight):item() end
    local got = {}
    amp.autocast({}, function()
      got[1] = value()
      dm.no_grad(function() weight:mul_(2) end)
      got[2] = value()
    end)
    got[3] = amp.autocast({}, value)
    assert.same({3, 6, 6}, got)
  end)

  it("gradients of a shared cast meet in float32", function()
    for _, cache in ipairs{true, false} do
      local weight = leaf(1, 1)
      local loss = amp.autocast({cache_enabled = cache}, function()
        local a = dm.linear(dm.full({1, 1}, 256.0), weight):float()
        return (a + dm.linear(dm.full({1, 1}, 1.0), weight):float()):sum()
      end)
      loss:backward()
      assert.equal(257, weight.grad:item())
    end
  end)

  it("knows dtypes apart", function()
    amp.autocast({dtype = "bfloat16"}, function()
      assert.equal("bfloat16", use().dtype)
      amp.autocast({dtype = "float16"}, function()
        assert.equal("float16", use().dtype)
        assert.equal("float16", use().dtype)
      end)
      assert.equal("bfloat16", use().dtype)
    end)
  end)

  it("keeps history, whichever use came first", function()
    for _, lp in ipairs(LP) do
      local seen, second, fourth = {}, nil, nil
      amp.autocast({dtype = lp}, function()
        for i = 1, 4 do
          local y = i % 2 == 1 and dm.no_grad(use) or use()
          seen[i] = y.requires_grad
          if i == 2 then second = y elseif i == 4 then fourth = y end
        end
      end)
      assert.same({false, true, false, true}, seen)
      w.grad = nil
      (second + fourth):sum():backward()
      assert.equal(2, w.grad[{1, 1}]:item())
    end
  end)

  it("inference inside a region, and a region inside inference", function()
    amp.autocast({}, function()
      local y = dm.inference_mode(use)
      assert.is_false(y.requires_grad)
      assert.equal(device.low, y.dtype)
      y = use()
      assert.is_true(y.requires_grad)
      y:float():sum()
    end)
    dm.inference_mode(function()
      local y = amp.autocast({}, use)
      assert.is_false(y.requires_grad)
      assert.equal(device.low, y.dtype)
    end)
  end)

  it("three forwards, three backwards", function()
    local model, input = nn.Sequential{nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)}, dm.randn(2, 4)
    local y = {}
    amp.autocast({}, function() for i = 1, 3 do y[i] = model(input):sum() end end)
    for i = 1, 3 do
      assert.is_true(y[i].requires_grad)
      y[i]:backward{retain_graph = i < 3}
    end
    assert.equal("float32", model[1].weight.grad.dtype)
  end)

  it("stays small in a region that never ends", function()
    local function live()
      collectgarbage()
      collectgarbage()
      return dm.memory_allocated(device.type)
    end
    local _ <close> = amp.autocast()
    local function steps(n)
      for i = 1, n do
        if i % 50 == 0 then collectgarbage() end
        use() -- a new version each time
        dm.no_grad(function() w:mul_(1.0) end)
        dm.mm(x, leaf(2, 2)) -- a leaf that nobody holds
      end
    end
    steps(100)
    local before = live()
    steps(1000)
    -- an entry holds two tensors of 512 bytes each; 1000 would be too many
    assert.is_true(live() - before < 300 * 1024)
  end)

  it("finds every one of many weights", function()
    local weights = {}
    for i = 1, 300 do weights[i] = dm.full({2, 2}, (i % 64) / 4, {requires_grad = true}) end
    local _ <close> = amp.autocast()
    local function use_all()
      for i = 1, 300 do
        assert.equal((i % 64) / 2, dm.mm(x, weights[i])[{1, 1}]:item())
      end
    end
    assert.equal(300, casts(use_all))
    assert.equal(0, casts(use_all))
  end)
end)

describe("gradients", function()
  it("through a 16-bit product: float32 at the leaf, equal to casts by hand", function()
    for _, lp in ipairs(LP) do
      local a, b = dm.randn(4, 4):requires_grad_(), dm.randn(4, 4):requires_grad_()
      local y = amp.autocast({dtype = lp}, function() return dm.mm(a, b) end)
      local seen
      y:register_hook(function(g) seen = g.dtype end)
      y:backward(dm.ones_like(y.data))
      local c, d = a.data:clone():requires_grad_(), b.data:clone():requires_grad_()
      dm.mm(c:to(lp), d:to(lp)):backward(dm.ones_like(y.data))
      assert.equal(lp, seen)
      assert.equal("float32", a.grad.dtype)
      same(a.grad, c.grad, "left")
      same(b.grad, d.grad, "right")
    end
  end)

  it("convolution, batch norm, ReLU, convolution, loss", function()
    for _, lp in ipairs(LP) do
      local one, bn, two = nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3), nn.Conv2d(3, 1, 3)
      local input, target = dm.randn(2, 2, 5, 5), dm.randn(2, 1, 3, 3)
      local dtypes, loss = {}, nil
      amp.autocast({dtype = lp}, function()
        local h = input
        for i, layer in ipairs{one, bn, nn.ReLU(), two} do
          h = layer(h)
          dtypes[i] = h.dtype
        end
        loss = nn.functional.mse_loss(h, target)
      end)
      assert.same({lp, lp, lp, lp}, dtypes)
      assert.equal("float32", loss.dtype)
      loss:backward()
      for _, p in ipairs{one.weight, one.bias, bn.weight, bn.bias, two.weight} do
        assert.equal("float32", p.dtype)
        assert.equal("float32", p.grad.dtype)
      end
      assert.equal("float32", bn.running_mean.dtype)
      assert.equal("float32", bn.running_var.dtype)
    end
  end)

  it("linear and ReLU keep 16-bit tensors only", function()
    local n = 128
    local input, weight = dm.randn(n, n), dm.randn(n, n):requires_grad_()
    for _, lp in ipairs(LP) do
      collectgarbage()
      collectgarbage()
      local before = dm.memory_allocated(device.type)
      local y = amp.autocast({dtype = lp}, function() return dm.linear(input, weight):relu() end)
      collectgarbage()
      collectgarbage()
      -- the input, the weight, the result; one of them in float32 would be a fourth
      local kept = (dm.memory_allocated(device.type) - before) / (n * n * 2)
      assert.is_true(kept >= 2 and kept < 3.5, kept)
      y:float():sum():backward()
    end
  end)
end)
