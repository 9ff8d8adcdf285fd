local dm = require "demilune"
local optim = dm.optim

local function trained(opt, p, gradients)
  for _, g in ipairs(gradients) do
    p.grad = dm.tensor{g + 0.0}
    opt:step()
  end
  return p[1]:item()
end

describe("optim", function()
  it("Adam: three steps of the worked example", function()
    local p = dm.ones(1, {requires_grad = true})
    local v = trained(optim.Adam({p}, {lr = 1e-3}), p, {1, -2, 0.5})
    assert.is_true(math.abs(v - 0.9995027780532837) <= 2^-24)
  end)

  it("SGD: three steps of the worked example", function()
    local p = dm.ones(1, {requires_grad = true})
    local opt = optim.SGD({p}, {lr = 0.1, momentum = 0.9, weight_decay = 1e-4})
    assert.is_true(math.abs(trained(opt, p, {1, 1, 1}) - 0.43894872069358826) <= 2^-24)
  end)

  it("passes over parameters without a gradient, and makes no state for them", function()
    local p, q = dm.ones(1, {requires_grad = true}), dm.ones(1, {requires_grad = true})
    local opt = optim.AdamW({p, q}, {lr = 0.1})
    trained(opt, p, {1})
    assert.equal(1, q:item())
    assert.is_nil(opt.state[q])
    assert.equal(1, opt.state[p].step:item())
  end)

  it("goes on from its state as if it had not stopped", function()
    for _, name in ipairs{"SGD", "Adam", "AdamW"} do
      local opts = name == "SGD" and {lr = 0.1, momentum = 0.9} or {lr = 0.1}
      local p, q = dm.ones(1, {requires_grad = true}), dm.ones(1, {requires_grad = true})
      local a, b = optim[name]({p}, opts), optim[name]({q}, opts)
      trained(a, p, {1, 2})
      b:load_state_dict(a:state_dict())
      q.data:copy_(p.data)
      assert.equal(trained(a, p, {3, -1}), trained(b, q, {3, -1}))
    end
  end)

  it("updates a parameter that is not dense", function()
    local p = dm.zeros(2, 3):t():detach():requires_grad_()
    local opt = optim.SGD({p}, {lr = 1})
    p.grad = dm.tensor{{1.0, 2.0}, {3.0, 4.0}, {5.0, 6.0}}
    opt:step()
    assert.same({{-1, -2}, {-3, -4}, {-5, -6}}, p:totable())
  end)

  it("refuses what it cannot use", function()
    local p = dm.ones(1, {requires_grad = true})
    assert.error_matches(function() optim.SGD({p}, {lrr = 1}) end, "did you mean 'lr'")
    assert.error_matches(function() optim.SGD({}) end, "empty")
    assert.error_matches(function() optim.SGD({p * 2}) end, "wanted a leaf")
    assert.error_matches(function() optim.SGD({p, p}) end, "already")
    assert.error_matches(function() optim.Adam({p}, {betas = {1.5, 0}}) end, "betas")
  end)

  it("warns once when a schedule is stepped first", function()
    local opt = optim.SGD({dm.ones(1, {requires_grad = true})}, {lr = 1})
    local schedule = optim.lr_scheduler.StepLR(opt, 2, {gamma = 0.5})
    assert.equal(1, #require "spec.warnings"(function()
      schedule:step()
      schedule:step()
    end))
    assert.equal(0.5, opt.param_groups[1].lr)
  end)
end)
