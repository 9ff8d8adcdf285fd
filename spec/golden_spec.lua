-- Definition: every op gives PyTorch's values and gradients, within case.tolerance, on every case
-- of spec/golden (written by scripts/golden). Each case runs on contiguous tensors, on strided
-- tensors, and in place where the op can.

local dm = require "demilune"
local case = require "spec.case"
local load_family = require("spec.golden").load

-- The bounds M and N of case.tolerance for the sums of a case, and the gap e of its coarsest dtype.
local function scale_of(c, made, with_gout)
  local m, n, e = 1, 1, 0
  for _, pair in ipairs(made) do
    local gap = case.EPS[pair.literal.t]
    if gap then m = case.magnitude(pair.literal.d, m) end
    n, e = math.max(n, #pair.literal.d), math.max(e, gap or 0)
  end
  for _, out in ipairs(c.out) do n = math.max(n, #out.d) end
  for _, g in ipairs(with_gout and c.gout or {}) do
    if g then m = case.magnitude(g, m) end
  end
  return {m = math.min(m, 1e3), n = n, e = e, grad = with_gout}
end

-- Inputs element by element, where the first has as many as the output.
local function own_inputs(c)
  local first, out = c.args[1], c.out[1]
  if case.is_literal(first) and out and #first.d == #out.d then return first.d end
end

local function check_outputs(c, kind, outs, made)
  assert.equal(#c.out, outs.n or #outs, "number of results")
  local scale = scale_of(c, made)
  scale.inputs = own_inputs(c)
  if kind == "activation" and not scale.inputs then kind = "sum" end
  for i, literal in ipairs(c.out) do
    case.check(outs[i], literal, kind, scale, "result " .. i)
  end
end

-- Backward from every output with its cotangent, then each input's gradient.
local function check_gradients(c, kind, outs, made)
  local live = {}
  for i, g in ipairs(c.gout) do
    if g then live[#live + 1] = i end
  end
  for k, i in ipairs(live) do
    local literal = {t = c.out[i].t, s = c.out[i].s, d = c.gout[i]}
    outs[i]:backward{gradient = case.build(dm, literal), retain_graph = k < #live}
  end
  local scale, own = scale_of(c, made, true), kind == "exact" or kind == "exp"
  for i, pair in ipairs(made) do
    local l = pair.literal
    local grad = pair.tensor.grad
    -- a gradient of zeros may be nil
    if l.g and (grad or case.magnitude(l.g) > 0) then
      case.check(grad, {t = l.t, s = l.s, d = l.g}, own and kind or "sum", scale,
        "gradient " .. i)
    end
  end
end

local function check_after(c, kind, args, made)
  local scale = scale_of(c, made)
  for i, literal in pairs(c.after or {}) do
    case.check(args[i], literal, kind, scale, "argument " .. i .. " afterwards")
  end
end

-- A view writes through to its base.
local function check_view(c, x, y)
  if c.out[1].t == "bool" or #c.out[1].d == 0 then return end
  y:detach():fill_(77)
  for _, v in ipairs(case.values(x)) do
    if v == 77 then return end
  end
  error("writing to the view did not change its base", 0)
end

local function run(c, kind, strided)
  local made = {}
  local args = case.decode(dm, c.args, {strided = strided, grad = true}, made)
  local outs = case.call(dm, c.op, args)
  check_outputs(c, kind, outs, made)
  check_after(c, kind, args, made)
  if c.gout then check_gradients(c, kind, outs, made) end
  if c.view then check_view(c, args[1], outs[1]) end
end

-- x:op_(...) changes x itself and hands it back; a copy of the leaf, so that
-- the gradient passes through the change.
local function run_in_place(c, kind)
  local made = {}
  local args = case.decode(dm, c.args, {grad = true}, made)
  local x = args[1]:clone()
  local method = x[c.op .. "_"]
  if method == nil then error("method " .. c.op .. "_ is missing", 0) end
  local y = method(x, table.unpack(args, 2))
  assert.is_true(rawequal(x, y), c.op .. "_ must return its operand")
  check_outputs(c, kind, {n = 1, x}, made)
  if c.gout then check_gradients(c, kind, {x}, made) end
end

local OPS = {"create", "view", "unary", "binary", "compare", "integers", "activation", "reduce",
  "index", "keys", "sort", "softmax", "distance", "derived", "matmul", "conv", "pool", "nd", "norm",
  "layers", "loss", "rnn", "attention", "order", "linalg", "fft", "numeric", "positions",
  "special", "further", "further_pointwise", "vision"}

for _, name in ipairs(OPS) do
  local family = load_family(name)
  describe("golden " .. name, function()
    for _, c in ipairs(family.cases) do
      local kind = c.kind or family.kind
      it(c.name, function() run(c, kind, false) end)
      if not c.dense then it(c.name .. ", strided", function() run(c, kind, true) end) end
      if c.inplace then it(c.name .. ", in place", function() run_in_place(c, kind) end) end
    end
  end)
end

describe("golden dropout", function()
  it("keeps about 1 - p of the elements and scales them by 1 / (1 - p)", function()
    dm.manual_seed(7)
    local n, p = 20000, 0.3
    local x = dm.ones(n, {requires_grad = true})
    local y = dm.dropout(x, {p = p})
    local kept = 0
    for _, v in ipairs(y:totable()) do
      if v ~= 0 then
        kept = kept + 1
        assert.is_true(math.abs(v - 1 / (1 - p)) < 1e-6)
      end
    end
    -- five standard deviations of a binomial
    assert.is_true(math.abs(kept - n * (1 - p)) < 5 * math.sqrt(n * p * (1 - p)))
    y:backward{gradient = dm.ones(n)}
    assert.same(y:totable(), x.grad:totable()) -- the same mask, the same factor
  end)
end)

local function parameters(literals)
  local params = {}
  for i, literal in ipairs(literals) do
    params[i] = case.build(dm, literal)
    params[i]:requires_grad_()
  end
  return params
end

local function set_grads(params, grads, shapes, dtype)
  for i, p in ipairs(params) do
    p.grad = case.build(dm, {t = dtype or "float32", s = shapes and shapes[i].s or {#grads[i]},
      d = grads[i]})
  end
end

describe("golden optim", function()
  for _, c in ipairs(load_family("optim").cases) do
    it(c.name, function()
      local params = parameters(c.params)
      local given = params
      if c.groups then
        given = {}
        for i, group in ipairs(c.groups) do
          given[i] = {params = {params[i]}}
          for k, v in pairs(group) do given[i][k] = v end
        end
      end
      local optimizer = dm.optim[c.class](given, next(c.opts) and c.opts or nil)
      for step, grads in ipairs(c.grads) do
        set_grads(params, grads, c.params)
        optimizer:step()
        for i, want in ipairs(c.out[step]) do
          -- each step rounds a few times: 4 per step at most, of values near 1
          local scale = {m = math.max(1, case.magnitude(want)), n = step ^ 2}
          case.check(params[i], {t = "float32", s = c.params[i].s, d = want}, "sum", scale,
            ("step %d, parameter %d"):format(step, i))
        end
      end
    end)
  end
end)

local function near(got, want, what)
  -- float64 throughout; recursive and closed forms differ by a few ulp a step
  if not got or math.abs(got - want) > 1e-13 + 1e-12 * math.abs(want) then
    error(("%s is %s, wanted %.17g"):format(what, got, want), 0)
  end
end

-- Constructors of schedules that need more than options; each returns the stepped object.
local made = {}
function made.ReduceLROnPlateau(optimizer, c)
  local schedule = dm.optim.lr_scheduler.ReduceLROnPlateau(optimizer, c.opts)
  return function(i) schedule:step(c.metrics[i]) end
end
local function parts_of(optimizer, c)
  local parts = {}
  for i, part in ipairs(c.parts) do
    local args = {table.unpack(part[2])}
    args[#args + 1] = part[3]
    parts[i] = dm.optim.lr_scheduler[part[1]](optimizer, table.unpack(args))
  end
  return parts
end
function made.SequentialLR(optimizer, c)
  local schedule = dm.optim.lr_scheduler.SequentialLR(optimizer, parts_of(optimizer, c),
    {milestones = c.milestones})
  return function() schedule:step() end
end
function made.ChainedScheduler(optimizer, c)
  local schedule = dm.optim.lr_scheduler.ChainedScheduler(parts_of(optimizer, c))
  return function() schedule:step() end
end
function made.SWALR(optimizer, c)
  local other = dm.optim.lr_scheduler.StepLR(optimizer, 2, {gamma = 0.5})
  local schedule = dm.optim.swa_utils.SWALR(optimizer, 0.05, c.opts)
  return function(i) (i <= 3 and other or schedule):step() end
end

describe("golden sched", function()
  for _, c in ipairs(load_family("sched").cases) do
    it(c.name, function()
      local p = dm.zeros(1, {requires_grad = true})
      if made[c.class] then
        local optimizer = dm.optim.SGD({p}, {lr = 0.5})
        local step = made[c.class](optimizer, c)
        for i, want in ipairs(c.rates) do
          near(optimizer.param_groups[1].lr, want, "rate " .. i)
          optimizer:step()
          step(i)
        end
        return
      end
      local optimizer = dm.optim[c.optimizer]({p}, c.config)
      local args = {table.unpack(c.args)}
      if c["lambda"] then
        local body = "local n = ... return " .. c["lambda"]
        args[1] = assert(load(body, "rate", "t", {min = math.min}))
      end
      if next(c.opts) then args[#args + 1] = c.opts end
      local schedule = dm.optim.lr_scheduler[c.class](optimizer, table.unpack(args))
      for step, want in ipairs(c.rates) do
        local group = optimizer.param_groups[1]
        near(group.lr, want, "rate " .. step)
        if c.momentum then near(group.momentum, c.momentum[step], "momentum " .. step) end
        if c.betas then near(group.betas[1], c.betas[step], "beta " .. step) end
        optimizer:step()
        if step < #c.rates then schedule:step() end
      end
    end)
  end
end)

describe("golden clip", function()
  for _, c in ipairs(load_family("clip").cases) do
    it(c.name, function()
      local literals = {}
      for i, g in ipairs(c.grads) do literals[i] = {t = "float32", s = {#g}, d = g} end
      local params = parameters(literals)
      set_grads(params, c.grads)
      local norm = dm.nn.utils[c.op](params, table.unpack(c.args))
      if c.norm then
        case.check(norm, {t = "float32", s = {}, d = {c.norm}}, "pointwise", {}, "norm")
      end
      for i, want in ipairs(c.out) do
        case.check(params[i].grad, {t = "float32", s = {#want}, d = want}, "pointwise", {},
          "gradient " .. i)
      end
    end)
  end

  it("error_if_nonfinite raises and leaves the gradients", function()
    local params = parameters{{t = "float32", s = {2}, d = {0, 0}}}
    set_grads(params, {{1 / 0, 1}})
    assert.has_error(function()
      dm.nn.utils.clip_grad_norm_(params, 1.0, {error_if_nonfinite = true})
    end)
    assert.same({1 / 0, 1}, params[1].grad:totable())
  end)
end)

describe("golden promote", function()
  local NUMBERS = {integer = 2, float = 2.5}
  local function operand(word)
    if NUMBERS[word] then return NUMBERS[word] end
    local dtype, kind = word:match("(%w+)/(%w+)")
    if kind == "nd" then return dm.ones(2, {dtype = dtype}) end
    return dm.tensor(1, {dtype = dtype})
  end
  for _, c in ipairs(load_family("promote").cases) do
    it(c.name, function()
      local wrong = {}
      for right, want in pairs(c.out) do
        local ok, y = pcall(dm[c.op] or error, operand(c.left), operand(right))
        local got = ok and y.dtype or tostring(y)
        if got ~= want then wrong[#wrong + 1] = ("%s: %s, wanted %s"):format(right, got, want) end
      end
      table.sort(wrong)
      assert.equal("", table.concat(wrong, "; "))
    end)
  end
end)

describe("golden cast", function()
  for _, c in ipairs(load_family("cast").cases) do
    it(c.name, function()
      local x = case.build(dm, c.x)
      local exact = {t = c.x.t, s = c.x.s, d = c.x.d}
      case.check(x, exact, "exact", {}, "input")
      case.check(x:to(c.out.t), c.out, "exact", {})
      case.check(case.build(dm, c.x, {strided = true}):to(c.out.t), c.out, "exact", {}, "strided")
    end)
  end
end)

describe("golden amp_scaler", function()
  local function scaler_with_param(opts, n, dtype)
    local config = {device = "cpu", min_scale = 0} -- PyTorch has no floor
    for k, v in pairs(opts) do config[k] = v end
    local p = dm.zeros(n, {dtype = dtype, requires_grad = true})
    return dm.amp.GradScaler(config), p, dm.optim.SGD({p}, {lr = 0.0})
  end

  local function histories(c)
    local scaler, p, optimizer = scaler_with_param(c.opts, 1, "float32")
    for i, stretch in ipairs(c.runs) do
      for _ = 1, stretch.n do
        scaler:scale(dm.tensor(0.0))
        p.grad = dm.tensor{stretch.inf and math.huge or 1.0}
        scaler:step(optimizer)
        scaler:update()
      end
      assert.equal(stretch.scale, scaler:get_scale(), "scale after stretch " .. i)
      local tracker = scaler:state_dict()._growth_tracker
      assert.equal(stretch.tracker, tracker, "counter after stretch " .. i)
    end
  end

  local function unscaling(c)
    local scaler, p, optimizer = scaler_with_param(c.opts, #c.grad.d, c.grad.t)
    scaler:scale(dm.tensor(0.0))
    p.grad = case.build(dm, c.grad)
    scaler:unscale_(optimizer)
    case.check(p.grad, c.unscaled, "exact", {}, "unscaled gradient")
  end

  for _, c in ipairs(load_family("amp_scaler").cases) do
    it(c.name, function()
      if c.runs then histories(c) else unscaling(c) end
    end)
  end
end)
