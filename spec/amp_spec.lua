local dm = require "demilune"
local amp = dm.amp

local function leaf(v) return dm.full(1, v, {requires_grad = true}) end

describe("autocast", function()
  it("restores the state on every way out", function()
    pcall(function()
      local _ <close> = amp.autocast{dtype = "bfloat16"}
      assert.is_true(amp.is_autocast_enabled("cpu"))
      error "out"
    end)
    assert.is_false(amp.is_autocast_enabled("cpu"))
    assert.equal("float16", amp.autocast({dtype = "float16"}, function()
      return dm.mm(dm.ones(2, 2), dm.ones(2, 2)).dtype
    end))
    assert.is_false(amp.is_autocast_enabled("cpu"))
  end)

  it("a wrapped function may call itself", function()
    local f
    f = amp.autocast{dtype = "bfloat16"}:wrap(function(n)
      return n == 0 and dm.mm(dm.ones(1, 1), dm.ones(1, 1)).dtype or f(n - 1)
    end)
    assert.equal("bfloat16", f(3))
    assert.is_false(amp.is_autocast_enabled("cpu"))
  end)

  it("refuses what is no device type, and warns on float32", function()
    assert.error_matches(function() amp.autocast{device_type = 3} end, "wanted a string")
    assert.error_matches(function() amp.autocast{device_type = "gpu"} end, "unknown device")
    local caller, texts = require "demilune.caller", {}
    local sink = caller.sink
    caller.sink = function(text) texts[#texts + 1] = text end
    amp.autocast({dtype = "float32"}, function()
      assert.is_false(amp.is_autocast_enabled("cpu"))
    end)
    caller.sink = sink
    assert.equal(1, #texts)
  end)
end)

describe("GradScaler", function()
  local function fresh(opts)
    local p = leaf(1.0)
    return amp.GradScaler(opts), p, dm.optim.SGD({p}, {lr = 1})
  end

  it("skips a step whose gradient is infinite, and backs off", function()
    local s, p, opt = fresh{init_scale = 8}
    s:scale(dm.tensor(1.0))
    p.grad = dm.tensor{math.huge}
    s:step(opt)
    assert.is_true(s:skipped(opt))
    s:update()
    assert.is_true(s:skipped(opt))
    assert.equal(1, p:item())
    assert.equal(4, s:get_scale())
    assert.equal(1, s:stats().skipped)
  end)

  it("steps on gradients divided by the scale", function()
    local s, p, opt = fresh{init_scale = 8}
    s:scale(p * 2):sum():backward()
    s:step(opt)
    s:update()
    assert.equal(-1, p:item())
    assert.is_false(s:skipped(opt))
  end)

  it("min_scale is a floor", function()
    local s, p, opt = fresh{init_scale = 2, min_scale = 1}
    for _ = 1, 5 do
      s:scale(dm.tensor(1.0))
      p.grad = dm.tensor{0 / 0}
      s:step(opt)
      s:update()
    end
    assert.equal(1, s:get_scale())
  end)

  it("refuses calls out of order", function()
    assert.error_matches(function() amp.GradScaler{growth_factor = 1} end, "growth_factor")
    assert.error_matches(function() amp.GradScaler{backoff_factor = 1} end, "backoff_factor")
    local s, p, opt = fresh()
    for _, method in ipairs{"unscale_", "step", "update"} do
      assert.error_matches(function() s[method](s, opt) end, "no scale yet")
    end
    assert.error_matches(function() s:scale(3) end, "wanted a tensor")
    s:scale(dm.tensor(1.0))
    assert.error_matches(function() s:step(opt) end, "no parameter")
    assert.error_matches(function() s:update() end, "no gradients were checked")
    p.grad = dm.tensor{1.0}
    s:unscale_(opt)
    assert.error_matches(function() s:unscale_(opt) end, "called already")
    assert.error_matches(function() s:step(opt, {closure = print}) end, "closures")
    s:step(opt)
    assert.error_matches(function() s:step(opt) end, "called already")
    assert.error_matches(function() s:unscale_(opt) end, "after step")
    s:update()
    assert.error_matches(function() s:load_state_dict{} end, "empty")
  end)

  it("off, it is plain training", function()
    local s, p, opt = fresh{enabled = false}
    local loss = p * 2
    assert.is_true(rawequal(loss, s:scale(loss)))
    loss:sum():backward()
    assert.equal(7, s:step(opt, function() return 7 end))
    s:update()
    assert.equal(-1, p:item())
    assert.equal(1, s:get_scale())
    assert.same({}, s:state_dict())
  end)
end)
