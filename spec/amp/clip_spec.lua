-- Gradient clipping gives PyTorch's values. PyTorch rounds the norm of 16-bit gradients to
-- 16 bits; the norm is float32 here, so 16-bit cases agree to 16 bits only.
local dm = require "demilune"
local utils = dm.nn.utils
local golden = require("spec.golden").load "scaler"
local warnings = require "spec.warnings"

local INF, NAN = math.huge, 0 / 0

-- One parameter for each array of gradients.
local function params_of(grads, dtype)
  dtype = dtype or "float32"
  local params = {}
  for i, g in ipairs(grads) do
    params[i] = dm.zeros(#g, {requires_grad = true, dtype = dtype})
    params[i].grad = dm.tensor(g, {dtype = dtype})
  end
  return params
end

local function grads_of(params)
  local grads = {}
  for i, p in ipairs(params) do grads[i] = p.grad:totable() end
  return grads
end

local function same(got, want, tolerance)
  if want ~= want then return got ~= got end
  return got == want or math.abs(got - want) <= tolerance * math.abs(want)
end

local function check(grads, want, tolerance)
  for i, row in ipairs(want) do
    for k, v in ipairs(row) do
      if not same(grads[i][k], v, tolerance or 0) then
        error(("gradient %d[%d] is %.17g, wanted %.17g"):format(i, k, grads[i][k], v), 2)
      end
    end
  end
end

-- How coarse two results of a dtype may be.
local COARSE = {float32 = 0, float16 = 2.0 ^ -10, bfloat16 = 2.0 ^ -7}

local function clips(grads, max_norm, opts, norm, want)
  for dtype, tolerance in pairs(COARSE) do
    local params = params_of(grads, dtype)
    local got = utils.clip_grad_norm_(params, max_norm, opts)
    assert.equal("float32", got.dtype)
    assert.equal(0, got:dim())
    assert.is_true(same(got:item(), norm, tolerance), got:item())
    check(grads_of(params), want, tolerance)
  end
end

describe("clip_grad_norm_", function()
  it("(3, 4) at 1, in one parameter or two", function()
    clips({{3, 4}}, 1.0, nil, 5, {{0.5999999046325684, 0.7999998331069946}})
    clips({{3}, {4}}, 1.0, nil, 5, {{0.5999999046325684}, {0.7999998331069946}})
  end)

  it("a norm below the limit changes nothing, one at the limit does", function()
    clips({{0.3, 0.4}}, 1.0, nil, 0.5, {{0.30000001192092896, 0.4000000059604645}})
    clips({{0.6, 0.8}}, 1.0, nil, 1, {{0.5999994277954102, 0.7999992370605469}})
  end)

  it("the largest magnitude", function()
    for _, p in ipairs{INF, "inf"} do
      clips({{3, -4}, {1}}, 2.0, {norm_type = p}, 4,
        {{1.4999996423721313, -1.9999995231628418}, {0.49999988079071045}})
    end
  end)

  it("the sum of magnitudes", function()
    clips({{3, -4}}, 1.0, {norm_type = 1}, 7, {{0.42857134342193604, -0.5714284777641296}})
  end)

  it("the norm of order 0.5", function()
    clips({{1, 4}}, 1.0, {norm_type = 0.5}, 9, {{0.1111110970377922, 0.4444443881511688}})
  end)

  it("max_norm 0 gives zeros", function()
    clips({{3, 4}}, 0.0, nil, 5, {{0, 0}})
  end)

  it("inf and NaN pass through", function()
    clips({{INF, 1}}, 1.0, nil, INF, {{NAN, 0}})
    clips({{NAN, 1}}, 1.0, nil, NAN, {{NAN, NAN}})
  end)

  it("squares that overflow float32, and clip_grad_value_", function()
    local params = params_of{{1e20, 1e20}}
    assert.equal(INF, utils.clip_grad_norm_(params, 1.0):item())
    check(grads_of(params), {{0, 0}})
    for dtype in pairs(COARSE) do
      params = params_of({{-3, -2, 0, 2.6, INF, -INF, NAN}}, dtype)
      utils.clip_grad_value_(params, 2.5)
      check(grads_of(params), {{-2.5, -2, 0, 2.5, 2.5, -2.5, NAN}})
    end
  end)

  it("error_if_nonfinite leaves the gradients", function()
    for _, bad in ipairs{INF, -INF, NAN} do
      for _, p in ipairs{2, INF} do
        local params = params_of{{bad, 1}, {2}}
        assert.refuses("norm of order " .. tostring(p) .. " is", function()
          utils.clip_grad_norm_(params, 1.0, {norm_type = p, error_if_nonfinite = true})
        end)
        check(grads_of(params), {{bad, 1}, {2}})
      end
    end
    local params = params_of{{3, 4}}
    utils.clip_grad_norm_(params, 1.0, {error_if_nonfinite = true})
    check(grads_of(params), {{0.5999999046325684, 0.7999998331069946}})
  end)

  it("PyTorch's random gradients", function()
    local tolerance = {float64 = 1e-14, float32 = 3e-7, float16 = 2.0 ^ -9, bfloat16 = 2.0 ^ -6}
    for _, c in ipairs(golden.clips) do
      local params = params_of(c.grads, c.dtype)
      local norm = utils.clip_grad_norm_(params, c.max_norm, {norm_type = c.norm_type})
      assert.equal(c.dtype == "float64" and "float64" or "float32", norm.dtype)
      assert.is_true(same(norm:item(), c.norm, tolerance[c.dtype]))
      check(grads_of(params), c.out, tolerance[c.dtype])
    end
  end)

  it("takes a tensor, an array, an iterator; passes over what has no gradient", function()
    local params = params_of{{3}, {4}}
    params[3] = dm.zeros(2, {requires_grad = true})
    assert.equal(5, utils.clip_grad_norm_(params, 100):item())
    assert.equal(3, utils.clip_grad_norm_(params[1], 100):item())
    assert.equal(0, utils.clip_grad_norm_(params[3], 100):item())
    assert.equal(0, utils.clip_grad_norm_({}, 100):item())
    local model = dm.nn.Linear(2, 1)
    model(dm.ones(1, 2)):sum():backward()
    assert.is_true(math.abs(utils.clip_grad_norm_(model:named_parameters(), 0.5):item() - 3 ^ 0.5)
      < 1e-6)
    assert.is_true(math.abs(utils.get_total_norm{model.weight.grad, model.bias.grad}:item() - 0.5)
      < 1e-5)
    local texts = warnings(function() utils.clip_grad_norm_(function() end, 1.0) end)
    assert.equal(1, #texts)
    assert.is_truthy(texts[1]:find("gives no parameter", 1, true))
  end)

  it("mixed dtypes, and gradients that are not dense", function()
    for _, dtype in ipairs{"float16", "bfloat16", "float32", "float64"} do
      local p, q = dm.zeros(2, 2, {requires_grad = true, dtype = dtype}), params_of{{2}}[1]
      p.grad = dm.tensor({{3, 0}, {6, 0}}, {dtype = dtype}):t()
      assert.is_false(p.grad:is_contiguous())
      local norm = utils.clip_grad_norm_({p, q}, 3.5)
      assert.is_true(same(norm:item(), 7, 1e-15))
      assert.equal(dtype == "float64" and dtype or "float32", norm.dtype)
      check({p.grad:reshape(-1):totable(), q.grad:totable()}, {{1.5, 3, 0, 0}, {1}}, 1e-6 +
        (COARSE[dtype] or 0))
    end
  end)

  it("in two parts", function()
    local a, b = params_of{{3, 4}, {12}}, params_of{{3, 4}, {12}}
    utils.clip_grad_norm_(a, 1.0)
    local norm = utils.get_total_norm{b[1].grad, b[2].grad}
    assert.equal(13, norm:item())
    utils.clip_grads_with_norm_(b, 1.0, norm)
    check(grads_of(b), grads_of(a))
    b = params_of{{3, 4}, {12}}
    utils.clip_grads_with_norm_(b, 1.0, 13)
    check(grads_of(b), grads_of(a))
    assert.refuses("norm of order 2.0 is inf", function()
      utils.get_total_norm({dm.tensor{INF}}, {error_if_nonfinite = true})
    end)
  end)

  it("says what is wrong, and changes nothing", function()
    local params = params_of{{3, 4}}
    for _, bad in ipairs{-1, NAN, "1"} do
      assert.refuses("max_norm is", function() utils.clip_grad_norm_(params, bad) end)
      assert.refuses("max_norm is", function() utils.clip_grads_with_norm_(params, bad, 1) end)
      assert.refuses("clip_value is", function() utils.clip_grad_value_(params, bad) end)
    end
    for _, bad in ipairs{-1, NAN, "two"} do
      assert.refuses("norm_type is", function()
        utils.clip_grad_norm_(params, 1, {norm_type = bad})
      end)
    end
    assert.refuses("wanted a tensor", function() utils.clip_grad_norm_(3, 1) end)
    assert.refuses("did you mean 'norm_type'", function()
      utils.clip_grad_norm_(params, 1, {normtype = 1})
    end)
    check(grads_of(params), {{3, 4}})
  end)
end)

-- The warning comes once a process, so each case is a program of its own.
describe("clipping of gradients that are still scaled", function()
  local PROGRAM = [[
local dm = require "demilune"
local caller = require "demilune.caller"
local n = 0
function caller.sink(text)
  assert(text:find("clip_grad_[a-z]+_: these gradients are still multiplied.*unscale_"), text)
  n = n + 1
end
local utils, s = dm.nn.utils, dm.amp.GradScaler()
local p = dm.zeros(1, {requires_grad = true})
local opt = dm.optim.SGD({p})
local function backward(scaled) (scaled and s:scale(p:sum()) or p:sum()):backward() end
local function clip() utils.clip_grad_norm_({p}, 1) end
%s
io.write(n, "\n")
]]

  local function warnings_of(body)
    local path = os.tmpname()
    local f = assert(io.open(path, "w"))
    f:write("package.path, package.cpath = ", ("%q, %q\n"):format(package.path, package.cpath),
      (PROGRAM:gsub("%%s", function() return body end)))
    f:close()
    local out = assert(io.popen("lua5.4 " .. path .. " 2>&1"))
    local text = out:read "a"
    out:close()
    os.remove(path)
    return tonumber(text) or text
  end

  it("warns once", function()
    assert.equal(1, warnings_of "backward(true) clip() clip()")
    assert.equal(1, warnings_of "backward(true) utils.clip_grad_value_(p, 1) clip()")
    assert.equal(1, warnings_of "backward(true) backward(true) clip()")
    assert.equal(1, warnings_of "(s:scale(p:sum()) * 0.5 + s:scale(p:sum())):backward() clip()")
    assert.equal(1, warnings_of "backward(true) s:unscale_(opt) backward(true) clip()")
  end)

  it("and never where there is no reason", function()
    assert.equal(0, warnings_of "backward(false) clip()")
    assert.equal(0, warnings_of [[
      backward(true)
      s:unscale_(opt)
      clip()
      s:step(opt)
      s:update()
      clip()]])
    assert.equal(0, warnings_of "backward(true) s:step(opt) clip()")
    assert.equal(0, warnings_of "backward(true) opt:zero_grad() backward(false) clip()")
    assert.equal(0, warnings_of "backward(true) p.grad:div_(s:get_scale()) clip()")
    assert.equal(0, warnings_of "backward(true) p.grad = p.grad / s:get_scale() clip()")
    assert.equal(0, warnings_of "s:scale(p:sum()) backward(false) clip()")
    assert.equal(0, warnings_of [[
      local q = dm.zeros(1, {requires_grad = true})
      backward(true)
      q:sum():backward()
      utils.clip_grad_norm_({q}, 1)]])
    assert.equal(0, warnings_of [[
      local off = dm.amp.GradScaler{enabled = false}
      off:scale(p:sum()):backward()
      clip()]])
    assert.equal(0, warnings_of [[
      dm.amp.step{loss = p:sum(), scaler = s, optimizer = opt, max_norm = 1}]])
  end)
end)
